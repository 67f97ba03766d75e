"""Experiments with one image and one question. Each is a generator of its finding so far, the finished one last.

They decode through the one loop and yield after each decode step, so that they can be closed there; where there is no
new finding, the last one comes again. Findings are records of ``findings``, which a page can draw without torch.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace

from PIL import Image

from specllava.core.config import RULES, DecodingConfig
from specllava.core.question import Messages
from specllava.core.trace import DecodeTrace
from specllava.findings.ablation import Ablation
from specllava.findings.sweep import Sweep
from specllava.lab.ablation import Variant, ablate, with_tree_comparisons
from specllava.lab.grounding import blank_picture, ground, replace_each
from specllava.lab.run import run_lane
from specllava.lab.sweep import compare_drafters, sweep, sweep_values
from specllava.models.media.images import Pictures, open_media
from specllava.pair import Pair
from specllava.prompt.prompt import with_draft_prompt
from specllava.spec_decode.loop import Lane


@dataclass(frozen=True, slots=True)
class Lab:
    """Experiments with one pair. All raise a ``ValueError`` in one line for bad input, as ``Pair`` does, and for a
    ``config`` whose guesses are drawn. Tokens of runs would differ, which cannot be compared.
    """

    pair: Pair

    def rules(self, image: Pictures, messages: Messages, config: DecodingConfig | None = None) -> Generator[Sweep]:
        """Run every tree rule that is compared on one prompt, and the one that is configured."""
        chosen = _comparable(config)
        prompt = self.pair.prompt(image, messages, chosen.max_new_tokens)
        return sweep(self.pair, prompt, chosen, "rule", RULES)

    def sweep(
        self, image: Pictures, messages: Messages, field: str, config: DecodingConfig | None = None
    ) -> Generator[Sweep]:
        """Sweep one numeric option, see :data:`specllava.findings.sweep.SWEEP_VALUES`."""
        chosen = _comparable(config)
        values = sweep_values(chosen, field)
        return sweep(self.pair, self.pair.prompt(image, messages, chosen.max_new_tokens), chosen, field, values)

    def drafters(
        self, image: Pictures, messages: Messages, others: Mapping[str, Lab], config: DecodingConfig | None = None
    ) -> Generator[Sweep]:
        """Race the drafts of one target on one prompt, and prompt lookup, whatever drafter ``config`` names.

        Args:
            others: a lab for each draft, by what it is called.

        Raises:
            ValueError: there is only one draft.
        """
        chosen = _comparable(replace(config or DecodingConfig(), drafter="model"))
        pairs = {name: lab.pair for name, lab in others.items()}
        present = next((name for name, lab in others.items() if lab.pair is self.pair), "")
        return compare_drafters(pairs, present, image, messages, chosen)

    def image_ablation(
        self, image: Pictures, messages: Messages, other: Image.Image, config: DecodingConfig | None = None
    ) -> Generator[Ablation]:
        """Ablate the draft's image: its own, a blank one, ``other``. The target always reads its own.

        Of several pictures each is replaced.
        """
        chosen = _comparable(config)
        if self.pair.draft_vision == "states":
            raise ValueError(
                f"the draft {self.pair.draft_name} reads the target's states: it cannot be shown another picture"
            )
        prompt = self.pair.prompt(image, messages, chosen.max_new_tokens)
        media = open_media(image)
        views = {
            "a blank picture": replace_each(media, blank_picture),
            "another picture": replace_each(media, lambda _: other),
        }
        variants = [Variant("the picture", self.pair, prompt)]
        for name, view in views.items():
            seen = with_draft_prompt(prompt, self.pair.prompt(view, messages))
            variants.append(Variant(name, self.pair, seen))
        return ablate(variants, chosen)

    def grounding(
        self, image: Pictures, messages: Messages, config: DecodingConfig | None = None
    ) -> Generator[DecodeTrace | None]:
        """Answer, then measure which tokens need the picture, see :func:`specllava.lab.grounding.ground`.

        Yields ``None`` until there is an answer.
        """
        chosen, media = _answerable(config), open_media(image)
        prompt = self.pair.prompt(media, messages, chosen.max_new_tokens)
        trace = yield from run_lane(self.pair, Lane.of(chosen, prompt), None)
        yield from ground(self.pair, media, messages, trace)

    def distillation(
        self, image: Pictures, messages: Messages, config: DecodingConfig | None = None
    ) -> Generator[Ablation]:
        """Compare the draft before distillation with the present one, with the trees of both where they differ most."""
        chosen = _comparable(config)
        if self.pair.draft_vision == "states":
            raise ValueError(
                f"the draft {self.pair.draft_name} reads the target's states, and the one from before distillation is a"
                " draft model: choose the draft that came of it"
            )
        prompt = self.pair.prompt(image, messages, chosen.max_new_tokens)
        pairs = {"before distillation": self.pair.undistilled(), "after distillation": self.pair}
        variants = [Variant(name, pair, prompt) for name, pair in pairs.items()]
        return _ablate_closely(variants, chosen)


def _ablate_closely(variants: Sequence[Variant], config: DecodingConfig) -> Generator[Ablation]:
    finding = Ablation(())
    for finding in ablate(variants, config):
        yield finding
    yield from with_tree_comparisons(finding, variants, config)


def _comparable(config: DecodingConfig | None) -> DecodingConfig:
    chosen = _answerable(config)
    if chosen.drafter != "model":
        raise ValueError(f"the drafter is {chosen.drafter}, and experiments look at the draft model: set it to model")
    return chosen


def _answerable(config: DecodingConfig | None) -> DecodingConfig:
    chosen = config or DecodingConfig()
    if not chosen.keeps_tokens:
        raise ValueError("guesses are drawn by chance, so runs would say different things: set children to best")
    return chosen
