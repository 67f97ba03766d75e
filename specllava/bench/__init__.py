"""The benchmark: every lane on the same prompts, in one process; ``docs/performance.md`` tells how to read it."""
