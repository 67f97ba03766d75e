"""The public face: a target with its draft, ready to answer."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image

from specllava.config import DecodingConfig
from specllava.decoding import Event, Lane, RaceEvent, collect, race, stream
from specllava.models.bundle import Bundle, DTypeName, load_bundle, with_draft
from specllava.models.checkpoint import Source
from specllava.models.images import open_image
from specllava.models.place import DEVICE_AUTO
from specllava.models.presets import preset_named, presets
from specllava.models.prompt import Messages, Prompt, build_prompt
from specllava.trace import DecodeTrace, Setting

Picture = Image.Image | str | Path | None
TARGET_ONLY, SPECULATIVE = "target-only", "speculative"


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and a draft that guesses for it. Every answer is the target's own, token for token."""

    bundle: Bundle

    @classmethod
    def from_preset(
        cls,
        name: str,
        device: str = DEVICE_AUTO,
        dtype: DTypeName = "auto",
        draft: Source | None = None,
        **options: Any,
    ) -> Pair:
        """Load a pair by its name; ``toy`` ships with the project and needs no network.

        Args:
            draft: a directory, or an id of the hub, in place of the preset's own draft; a preset may have none.
            options: see :func:`~specllava.models.bundle.load_bundle`.

        Raises:
            ValueError: unknown preset, or a device or files that are not there.
        """
        preset = preset_named(name)
        return cls(load_bundle(name, preset.target, draft or preset.draft, device, dtype, **options))

    @classmethod
    def load(cls, target: Source, draft: Source | None = None, **options: Any) -> Pair:
        """Load any target, and a draft for it, each from a directory or by an id of the hub.

        Args:
            draft: without one, only ``prompt-lookup`` and ``none`` can draft.
            options: device, dtype and others, see :func:`~specllava.models.bundle.load_bundle`.

        Raises:
            ValueError: as ``load_bundle``.
        """
        return cls(load_bundle(Path(target).name, target, draft, **options))

    def undistilled(self) -> Pair:
        """The same target with its draft as it was before distillation.

        Raises:
            ValueError: this pair has none.
        """
        preset = presets().get(self.bundle.name)
        if preset is None or preset.before is None:
            raise ValueError(f"the pair {self.bundle.name} has no draft from before distillation")
        return Pair(with_draft(self.bundle, preset.before))

    @property
    def setting(self) -> Setting:
        """What is running: models, device, precision, versions."""
        return self.bundle.setting

    def prompt(self, image: Picture, messages: Messages, new_tokens: int = 0) -> Prompt:
        """Read a picture and a question (or a chat, see :func:`build_prompt`) once, for any number of runs.

        Raises:
            ValueError: bad input, or it does not fit the context together with ``new_tokens``.
        """
        picture = None if image is None else open_image(image)
        return build_prompt(self.bundle, picture, messages, new_tokens)

    def stream(self, image: Picture, messages: Messages, config: DecodingConfig | None = None) -> Iterator[Event]:
        """Decode step by step: a ``Prefill``, then a ``StepTrace`` per target pass."""
        chosen = config or DecodingConfig()
        return stream(self.bundle, self.prompt(image, messages, chosen.max_new_tokens), chosen)

    def generate(self, image: Picture, messages: Messages, config: DecodingConfig | None = None) -> DecodeTrace:
        """Decode to the end; ``.text`` is the answer."""
        chosen = config or DecodingConfig()
        return self.run(lane_of(chosen, self.prompt(image, messages, chosen.max_new_tokens)))

    def run(self, lane: Lane) -> DecodeTrace:
        """Decode one lane to the end."""
        return collect(self.bundle, lane, stream(self.bundle, lane.prompt, lane.config))

    def race(self, image: Picture, messages: Messages, config: DecodingConfig | None = None) -> Generator[RaceEvent]:
        """Target-only against ``config``, side by side on one device with a clock each.

        If ``config`` drafts nothing there is nobody to race against, and target-only runs by itself.
        """
        chosen = config or DecodingConfig()
        prompt = self.prompt(image, messages, chosen.max_new_tokens)
        alone = lane_of(replace(chosen, drafter="none"), prompt)
        return race(self.bundle, [alone] if chosen.drafter == "none" else [alone, lane_of(chosen, prompt)])

    def collect_race(self, events: Iterable[RaceEvent]) -> dict[str, DecodeTrace]:
        """A trace per lane of a race, finished or stopped; lanes that did not start are left out."""
        lanes: dict[str, Lane] = {}
        items: dict[str, list[Event]] = {}
        for event in events:
            lanes[event.lane] = event.run
            items.setdefault(event.lane, []).append(event.item)
        return {name: collect(self.bundle, lane, items[name]) for name, lane in lanes.items()}

    def compare(
        self, image: Picture, messages: Messages, config: DecodingConfig | None = None
    ) -> dict[str, DecodeTrace]:
        """Run a race to its end: traces of ``target-only`` and ``speculative``.

        Raises:
            ValueError: ``config`` drafts nothing, so there is nothing to compare.
        """
        if config is not None and config.drafter == "none":
            raise ValueError('both lanes would be target-only: a comparison needs another drafter than "none"')
        return self.collect_race(self.race(image, messages, config))

    def text_of(self, token: int) -> str:
        """What one token adds to a text."""
        return self.bundle.text_of(token)

    def decode(self, ids: Iterable[int]) -> str:
        """The answer that token ids spell."""
        return self.bundle.decode(list(ids))


def lane_of(config: DecodingConfig, prompt: Prompt) -> Lane:
    """A lane with its ordinary name."""
    return Lane(TARGET_ONLY if config.drafter == "none" else SPECULATIVE, config, prompt)
