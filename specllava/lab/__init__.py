"""Experiments with one picture and one question. Each is a generator: what it has found so far, and last everything.

They decode through the one loop and yield after each decode step, the unchanged finding where there is no new one, so
that they can be closed between any two steps. What they find is in ``findings``, which a page can draw without torch.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from PIL import Image

from specllava.config import RULES, DecodingConfig
from specllava.findings.contrast import Contrast
from specllava.findings.fork import Fork
from specllava.findings.sweep import Sweep
from specllava.lab.contrast import Setup, contrast, with_tree_comparisons
from specllava.lab.fork import open_fork, take_fork
from specllava.lab.sweep import knob_values, sweep
from specllava.pair import Pair, Picture
from specllava.runtime.chat_format import Messages
from specllava.runtime.prompt import with_draft_prompt

BLANK = (128, 128, 128)  # a picture that says nothing: grey is about what the vision tower takes for zero


@dataclass(frozen=True, slots=True)
class Lab:
    """Experiments with one pair. All raise a ``ValueError`` in one line for bad input, as ``Pair`` does, and for a
    ``config`` whose guesses are drawn: runs would say different things, which cannot be compared.
    """

    pair: Pair

    def rules(self, image: Picture, messages: Messages, config: DecodingConfig | None = None) -> Generator[Sweep]:
        """Every tree rule on one prompt."""
        chosen = _comparable(config)
        prompt = self.pair.prompt(image, messages, chosen.max_new_tokens)
        return sweep(self.pair, prompt, chosen, "rule", RULES)

    def knob(
        self, image: Picture, messages: Messages, field: str, config: DecodingConfig | None = None
    ) -> Generator[Sweep]:
        """One number of the settings turned, see :data:`specllava.findings.sweep.KNOBS`."""
        chosen = _comparable(config)
        values = knob_values(chosen, field)
        return sweep(self.pair, self.pair.prompt(image, messages, chosen.max_new_tokens), chosen, field, values)

    def seeing(
        self, image: Image.Image, messages: Messages, other: Image.Image, config: DecodingConfig | None = None
    ) -> Generator[Contrast]:
        """The draft sees the picture, a blank one, ``other``; the target always sees the picture."""
        chosen = _comparable(config)
        prompt = self.pair.prompt(image, messages, chosen.max_new_tokens)
        views = {"a blank picture": Image.new("RGB", image.size, BLANK), "another picture": other}
        setups = [Setup("the picture", self.pair, prompt)]
        for name, view in views.items():
            shown = with_draft_prompt(prompt, self.pair.prompt(view, messages))
            setups.append(Setup(name, self.pair, shown))
        return contrast(setups, chosen)

    def distillation(
        self, image: Picture, messages: Messages, config: DecodingConfig | None = None
    ) -> Generator[Contrast]:
        """The draft as it was before distillation and as it is, and the trees of both where they differ most."""
        chosen = _comparable(config)
        prompt = self.pair.prompt(image, messages, chosen.max_new_tokens)
        pairs = {"before distillation": self.pair.undistilled(), "after distillation": self.pair}
        setups = [Setup(name, pair, prompt) for name, pair in pairs.items()]
        return _closely(setups, chosen)

    def fork(
        self,
        image: Picture,
        messages: Messages,
        given: Sequence[int] = (),
        config: DecodingConfig | None = None,
    ) -> Generator[Fork | None]:
        """The answer with what else could stand at each place; with ``given`` (the answer's beginning and, last,
        another token), decoded on from there. ``None`` until then: a fork is found as a whole."""
        chosen = _comparable(config)
        prompt = self.pair.prompt(image, messages, chosen.max_new_tokens)
        if given:
            yield (yield from take_fork(self.pair, prompt, chosen, given))
        else:
            yield (yield from open_fork(self.pair, prompt, chosen))


def _closely(setups: Sequence[Setup], config: DecodingConfig) -> Generator[Contrast]:
    found = Contrast(())
    for found in contrast(setups, config):
        yield found
    yield from with_tree_comparisons(found, setups, config)


def _comparable(config: DecodingConfig | None) -> DecodingConfig:
    chosen = config or DecodingConfig()
    if chosen.drafter != "model":
        raise ValueError(f"the drafter is {chosen.drafter}, and experiments look at the draft model: set it to model")
    if not chosen.exact:
        raise ValueError("guesses are drawn by chance, so runs would say different things: set children to best")
    return chosen
