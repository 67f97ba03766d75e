"""First commands for pairs that people ask for: install, compare, show the page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Start:
    """How to begin with a preset.

    Args:
        name: of the target, as people know it.
        guide: path of its document in the repository.
    """

    name: str
    preset: str
    guide: str

    @property
    def commands(self) -> tuple[str, str, str]:
        """Return the commands that install, compare with the target alone, and open the page."""
        compare = f"python -m specllava compare --preset {self.preset} --image photo.jpg"
        return (
            "pip install -r requirements.txt",
            f'{compare} --prompt "Describe this image in detail."',
            f"python app.py --preset {self.preset}",
        )


STARTS: Final = (
    Start("LLaVA", "llava-1.5-7b-msd", "docs/llava.md"),
    Start("Qwen2.5-VL", "qwen2.5-vl-7b-vispec", "docs/drafters.md"),
    Start("SmolVLM2", "smolvlm2-2.2b-256m", "docs/models.md"),
)
