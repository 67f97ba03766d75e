"""Program that renders one chat template within limits: ``SECONDS MEMORY``, of what a JSON text on stdin holds.

It is a process of its own, so that the system ends it at those limits; it imports neither torch nor this package.
"""

from __future__ import annotations

import json
import sys
import time


def limit(seconds: int, memory: int) -> None:
    """Limit this process to more CPU seconds and bytes than it has taken; where the system has no limits, to none."""
    try:
        import resource
    except ImportError:
        return
    end = int(time.process_time()) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (end, end))
    try:
        with open("/proc/self/statm") as pages:
            taken = int(pages.read().split()[0]) * resource.getpagesize()
    except OSError:
        taken = 2**31
    resource.setrlimit(resource.RLIMIT_AS, (taken + memory,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> int:
    """Write ``{"text": …}``, or ``{"error": …}`` where the template raises one; 1 if it takes too much memory."""
    template, chat, special, add_generation_prompt = json.load(sys.stdin)
    from transformers.utils.chat_template_utils import render_jinja_template

    limit(int(sys.argv[1]), int(sys.argv[2]))
    try:
        texts, _ = render_jinja_template(
            [chat], chat_template=template, add_generation_prompt=add_generation_prompt, **special
        )
        answer = {"text": texts[0]}
    except MemoryError:
        return 1
    except Exception as error:  # noqa: BLE001 - whatever that program raises
        answer = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:160]}
    json.dump(answer, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
