"""The benchmark: every lane on the same prompts, in one process; see ``docs/results.md``."""
