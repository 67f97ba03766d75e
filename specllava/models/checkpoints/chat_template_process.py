"""Program that renders one chat template within limits, of what a JSON text on stdin holds; without torch.

    python -m specllava.models.checkpoints.chat_template_process
"""

from __future__ import annotations

import json
import sys
import time
from typing import Final

from transformers.utils.chat_template_utils import render_jinja_template

from specllava.core.bounded_process import bound

SECONDS: Final = 2  # of processor time, beside what it takes to start
MEMORY: Final = 2**30  # bytes of address space, of which it starts with a third
OUTPUT: Final = 2**28  # bytes


def main() -> int:
    """Write ``{"text": …}``, or ``{"error": …}`` where the template raises one; 1 if it takes too much memory."""
    template, chat, special, add_generation_prompt = json.load(sys.stdin)
    bound(MEMORY, time.process_time() + SECONDS, OUTPUT)
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
