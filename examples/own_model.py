"""Models of your own: any target of a known family with any draft for it, each a directory or an id of the hub.

    PYTHONPATH=. python examples/own_model.py --target TARGET --draft DRAFT --image photo.jpg

Without a draft the prompt itself is searched for guesses; without arguments the shipped target runs so.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from specllava import DecodingConfig, Pair
from specllava.metrics import compare, summarise

ASSETS = Path(__file__).resolve().parents[1] / "assets"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default=str(ASSETS / "toy" / "target"))
    parser.add_argument("--draft", default=None)
    parser.add_argument("--image", type=Path, default=ASSETS / "examples" / "1-describe.png")
    parser.add_argument("--question", default="Describe this image in detail.")
    asked = parser.parse_args()
    pair = Pair.load(asked.target, asked.draft, notify=print)
    config = DecodingConfig(drafter="prompt-lookup" if pair.draft is None else "model")
    race = pair.compare(asked.image, asked.question, config)
    plain, fast = race["target-only"], race["speculative"]
    totals = summarise([fast])
    print(fast.text)
    print(f"{totals.tau:.2f} tokens a pass, {totals.acceptance:.0%} of the guesses accepted")
    print("the same tokens" if compare(plain, fast).identical else "other tokens: a near-tie in half precision")


if __name__ == "__main__":
    main()
