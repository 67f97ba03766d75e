"""What is drawn and said of the shipped races, as a digest for each file and part.

``python -m tests.support.golden`` writes ``tests/golden/shipped.json``; ``tests/test_golden.py`` compares with it.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from visual.player.frames import race_frames
from visual.player.recorded import read_recorded

ASSETS = Path(__file__).resolve().parents[2] / "assets"
DIGESTS = Path(__file__).resolve().parents[1] / "golden" / "shipped.json"
PARTS = ("tree", "phases", "lines", "words", "headline")


def race_files() -> list[Path]:
    """The shipped examples and the races of the lessons."""
    found = [*ASSETS.glob("examples/*.json"), *ASSETS.glob("lessons/*.json")]
    return sorted(path for path in found if path.name != "lessons.json")


def digests(path: Path) -> dict[str, str]:
    """Return the digest of each part of a race file, all turns and steps in order."""
    race = read_recorded(path)
    parts: dict[str, list[Any]] = {part: [] for part in PARTS}
    for turn in range(len(race.turns)):
        for frame in map(json.loads, race_frames(race, turn=turn)):
            for part in PARTS:
                if part in frame:
                    parts[part].append(frame[part])
    return {part: sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:16] for part, found in parts.items()}


if __name__ == "__main__":
    rows = (f"{json.dumps(str(path.relative_to(ASSETS)))}: {json.dumps(digests(path))}" for path in race_files())
    DIGESTS.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
