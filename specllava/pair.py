"""Public interface: a target with its draft, ready to answer."""

from __future__ import annotations

import platform
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, Unpack

import torch
import transformers
from PIL import Image
from transformers import PreTrainedModel, ProcessorMixin

from specllava.core.config import DecodingConfig
from specllava.core.growth.rules import build_rule
from specllava.core.question import Messages
from specllava.core.race import Race
from specllava.core.trace import NO_DRAFT, DecodeTrace, RunInfo
from specllava.decoding import Event, RaceEvent, Request, collect, race, stream
from specllava.drafters.build import build_drafter
from specllava.lane import SIDES, Lane, LaneFacts, LaneOverrides, lane_of, race_lanes
from specllava.models.checkpoints.checkpoint import Checkpoint, Source
from specllava.models.checkpoints.language_model import checked_context, input_device
from specllava.models.checkpoints.tokens import Detokenizer, eos_token_ids
from specllava.models.drafts.draft_classes import VisionSource, vision_source
from specllava.models.drafts.draft_reading import DraftFormat, DraftReading
from specllava.models.families.family import family_of
from specllava.models.families.interface import Family, ImageFeatures
from specllava.models.loading.load_options import LoadOptions, PassesName, QuantizationName
from specllava.models.loading.loading import load_draft, load_target
from specllava.models.loading.presets import draft_hint, preset_named, presets
from specllava.models.media.images import Pictures, open_media
from specllava.runtime.kv_caches import EnginePool, KVCaches, build_engine_pool
from specllava.runtime.padded_passes import COLUMNS
from specllava.runtime.prompt import Prompt
from specllava.runtime.prompt_builder import PromptBuilder, check_room
from specllava.verification.answer_settings import answer_settings, check_settings, settings_in_force

CHAT_TOKENS = 1024  # caches that outlive an answer grow by as many, so that they seldom move


@dataclass(frozen=True)
class Pair:
    """A target and a draft that guesses for it. Every answer is the target's own, token for token.

    Args:
        draft: ``None`` where there is no draft model.
        draft_processor: of a draft with a tower of its own, which it then reads pictures with.
        quantization: how the target's weights are stored.
        context_limit: tokens of prompt and answer, if fewer than the target can hold.
        passes: how they run, see :func:`~specllava.runtime.kv_caches.build_engine_pool`.
        exact: target-only decodes by the very kernels that verify trees, and only what stands in a tree as in the text
            is accepted: equal bits in any precision.
    """

    name: str
    target: PreTrainedModel
    draft: PreTrainedModel | None
    processor: ProcessorMixin
    target_name: str
    draft_name: str
    draft_processor: ProcessorMixin | None = None
    quantization: QuantizationName = "none"
    context_limit: int | None = None
    passes: PassesName = "auto"
    exact: bool = False

    @classmethod
    def from_preset(cls, name: str, draft: Source | None = None, **options: Any) -> Pair:
        """Load a pair by its name; ``toy`` ships with the project and needs no network.

        Args:
            draft: a directory, or an id of the hub, that replaces the preset's own draft, if any.
            options: as :meth:`load`; those about the draft win over the preset's.

        Raises:
            ValueError: unknown preset, or a device or files that are not there.
        """
        preset = preset_named(name)
        given = {field.name: options.pop(field.name, None) for field in fields(DraftReading)}
        chosen, reading = preset.chosen(draft, DraftReading(**given))
        return cls.load(preset.target, chosen, name=name, **asdict(reading), **options)

    @classmethod
    def load(
        cls,
        target: Source,
        draft: Source | None = None,
        name: str | None = None,
        tell: Callable[[str], None] = lambda line: None,
        **options: Any,
    ) -> Pair:
        """Load any target, and a draft for it, each from a directory or by an id of the hub.

        Args:
            draft: without one, only ``prompt-lookup`` and ``none`` can draft.
            name: of the pair; by default the target's.
            tell: receives a line on the memory that is needed, before anything is loaded.
            options: fields of :class:`~specllava.models.loading.load_options.LoadOptions`.

        Raises:
            ValueError: no model there, more memory needed than there is, or models that do not fit each other; one
                line with the numbers.
        """
        name = name or Checkpoint.at(target).name
        chosen = LoadOptions(**options)
        loaded = load_target(name, target, draft, chosen, tell)
        check_settings(loaded.model.generation_config)
        models = (loaded.model, None, loaded.processor)
        pair = cls(
            name, *models, loaded.name, NO_DRAFT, quantization=chosen.quantization, context_limit=loaded.context
        )
        return pair if draft is None else pair.with_draft(draft, tell=tell, **asdict(chosen.reading))

    def with_draft(
        self,
        draft: Source,
        draft_format: DraftFormat | None = None,
        tell: Callable[[str], None] = lambda line: None,
        draft_state_layers: tuple[int, ...] | None = None,
        draft_rope_theta: float | None = None,
    ) -> Pair:
        """Return the same target, not loaded again, with the draft of a directory or of the hub.

        Args:
            draft_format, draft_state_layers, draft_rope_theta: as
                :class:`~specllava.models.drafts.draft_reading.DraftReading`.
            tell: receives a line about weights that must be unpickled.

        Raises:
            ValueError: no model there, or one that does not fit the target.
        """
        reading = DraftReading(draft_format, draft_state_layers, draft_rope_theta)
        loaded = load_draft(draft, self.target, self.processor, reading, tell)
        drafting = {"draft": loaded.model, "draft_name": loaded.name, "draft_processor": loaded.processor}
        pair = replace(self, **drafting)
        vars(pair)["engines"] = engines = self.engines.beside(self.target)
        engines.check(pair.target, pair.draft)
        return pair

    @cached_property
    def device(self) -> torch.device:
        return input_device(self.target)

    @cached_property
    def engines(self) -> EnginePool:
        """The engines of its models, which outlive the answers that they serve.

        Raises:
            ValueError: passes that this device cannot run.
        """
        engines = build_engine_pool(self.device, self.passes, self.exact)
        engines.check(self.target, self.draft)
        return engines

    @cached_property
    def family(self) -> Family:
        return family_of(self.target.config)

    @property
    def sees(self) -> bool:
        """Whether the target reads pictures."""
        return self.family.sees

    @property
    def way_to_draft(self) -> str:
        """How this target gets a draft, for a message."""
        return draft_hint(self.target.config.name_or_path, self.family.name, self.family.way_to_draft)

    @cached_property
    def draft_vision(self) -> VisionSource | None:
        """Source of the draft's picture features; ``None`` without a draft."""
        return None if self.draft is None else vision_source(self.draft)

    @cached_property
    def eos_token_ids(self) -> frozenset[int]:
        """Ids that end an answer."""
        return eos_token_ids(self.target, self.processor.tokenizer)

    @cached_property
    def context(self) -> int:
        """Tokens of prompt and answer: as many as the target can hold, or ``context_limit`` if that is less."""
        return checked_context(self.context_limit, self.target.config)

    @property
    def info(self) -> RunInfo:
        """Models, device, precision and versions, and how passes have run so far."""
        return replace(self._info, passes=self.passes_told)

    @cached_property
    def _info(self) -> RunInfo:
        device, precision = self.device, str(self.target.dtype).removeprefix("torch.")
        return RunInfo(
            pair=self.name,
            target=self.target_name,
            draft=self.draft_name,
            device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            dtype=precision if self.quantization == "none" else f"{precision} {self.quantization}",
            threads=torch.get_num_threads(),
            versions={
                "python": platform.python_version(),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
            },
            draft_reads="states" if self.draft_vision == "states" else None,
            generation_config=settings_in_force(self.target.generation_config, sampling=False),
        )

    @property
    def passes_told(self) -> str | None:
        """How passes have run so far, in words, by model where these differ; ``None``: all in shapes as they came."""
        models = {"target": self.target} | ({} if self.draft is None else {"draft": self.draft})
        ways = {name: self.engines.way(model) for name, model in models.items()}
        line = ways["target"]
        if len(set(ways.values())) > 1:
            line = "; ".join(f"{name}: {way}" for name, way in ways.items())
        return None if line == "eager" else f"{line}; exact" if self.engines.exact else line

    @cached_property
    def detokenizer(self) -> Detokenizer:
        return Detokenizer(self.processor.tokenizer)

    @cached_property
    def prompt_builder(self) -> PromptBuilder:
        drafting = (self.draft, self.draft_processor, self.draft_vision)
        return PromptBuilder(self.target_name, self.processor, self.target, *drafting, self.context)

    def to(self, device: str) -> Pair:
        """Move the models to a device, in place, and return the pair there."""
        draft = None if self.draft is None else self.draft.to(device)
        return replace(self, target=self.target.to(device), draft=draft)

    def running(self, passes: PassesName, exact: bool = False) -> Pair:
        """Return the same models with passes that run another way, see :class:`Pair`.

        Raises:
            ValueError: the device cannot run them.
        """
        if (passes, exact) == (self.passes, self.exact):
            return self
        pair = replace(self, passes=passes, exact=exact)
        _ = pair.engines
        return pair

    def warm_up(self) -> None:
        """Capture the passes that a dialogue's race begins with, so that nobody waits for them; where any are."""
        if self.engines.graphs is None:
            return
        prompt = self.prompt(None, "Describe it.")
        tokens = min(COLUMNS, self.context - prompt.length)
        config = DecodingConfig(drafter="none" if self.draft is None else "model", max_new_tokens=tokens)
        lanes = [(lane, KVCaches(self.engines)) for lane in race_lanes(lane_of(config, prompt))]
        for lane, caches in lanes:
            self.request(lane, caches, record=False).prefill()

    def undistilled(self) -> Pair:
        """Return the same target with its draft as it was before distillation.

        Raises:
            ValueError: this pair has none.
        """
        preset = presets().get(self.name)
        if preset is None or preset.before is None or self.draft_vision == "states":  # which began as another draft
            raise ValueError(f"the pair {self.name} has no draft from before distillation")
        return self.with_draft(preset.before)

    def prompt(
        self,
        image: Pictures,
        messages: Messages,
        new_tokens: int = 0,
        known: Mapping[str, ImageFeatures] | None = None,
    ) -> Prompt:
        """Build a prompt of a picture and a question (or a chat, see :class:`PromptBuilder`), for any number of runs.

        Args:
            image: one, several in their order, or none.

        Raises:
            ValueError: bad input, or it does not fit the context together with ``new_tokens``.
        """
        return self.prompt_builder.build(open_media(image), messages, new_tokens, known)

    def request(self, lane: Lane, caches: KVCaches | None = None, record: bool = True) -> Request:
        """Make the request that answers a lane; :func:`~specllava.decoding.stream` runs it.

        Args:
            caches: of earlier answers, to go on with; without them nothing is reused.
            record: record the target's view of every node, outside every clock.

        Raises:
            ValueError: prompt and limit do not fit the context, or there is no draft to draft with; a rule that does
                not fit its drafter or drawn children.
        """
        config, prompt = lane.config, lane.prompt
        check_room(self.context, prompt.length, config.max_new_tokens, prompt.turn)
        drafter = build_drafter(config.drafter, self.draft) if lane.drafter is None else lane.drafter
        if drafter.needs_draft and self.draft is None:
            ways = f'use drafter "prompt-lookup" or "none", or {self.way_to_draft}'
            raise ValueError(f"the pair {self.name} has no draft: {ways}")
        if lane.rule is not None and not drafter.grows:
            raise ValueError(f"the drafter {drafter.name} grows no trees, so the rule {lane.rule.name} has no use")
        if lane.rule is not None and config.children == "drawn" and not lane.rule.drawable:
            raise ValueError(
                f"the rule {lane.rule.name} is not drawable: set children to best, or drawable if its trees do not"
                " depend on which tokens are guessed"
            )
        rule = lane.rule
        if drafter.grows and rule is None:
            rule = build_rule(config)
        length = prompt.length + config.max_new_tokens
        if caches is not None:
            length = min(self.context, -(-length // CHAT_TOKENS) * CHAT_TOKENS)
        models, eos = (self.target, self.draft), self.eos_token_ids
        settings = answer_settings(self.target, self.processor.tokenizer, config, prompt.input_ids, eos)
        return Request(lane, *models, eos, settings, drafter, rule, caches or KVCaches(self.engines), length, record)

    def lane(
        self, image: Pictures, messages: Messages, config: DecodingConfig | None = None, **own: Unpack[LaneOverrides]
    ) -> Lane:
        """Build a lane of a prompt, with its default name."""
        config = config or DecodingConfig()
        return lane_of(config, self.prompt(image, messages, config.max_new_tokens), **own)

    def stream(
        self, image: Pictures, messages: Messages, config: DecodingConfig | None = None, **own: Unpack[LaneOverrides]
    ) -> Iterator[Event]:
        """Decode step by step: a ``Prefill``, then a ``StepTrace`` per target pass.

        Args:
            own: ``rule=`` and ``drafter=``: objects that replace those of ``config`` (``docs/extending.md``).
        """
        return stream(self.request(self.lane(image, messages, config, **own)))

    def generate(
        self,
        image: Pictures,
        messages: Messages,
        config: DecodingConfig | None = None,
        record: bool = True,
        **own: Unpack[LaneOverrides],
    ) -> DecodeTrace:
        """Decode to the end; ``.text`` is the answer. Without ``record`` the trace cannot explain its steps."""
        return self.run(self.lane(image, messages, config, **own), record)

    def run(self, lane: Lane, record: bool = True) -> DecodeTrace:
        """Decode one lane to the end."""
        return self.collect(lane, stream(self.request(lane, record=record)))

    def collect(self, lane: Lane | LaneFacts, events: Iterable[Event]) -> DecodeTrace:
        """Return the trace of a lane from its events, finished or not."""
        facts = lane.facts if isinstance(lane, Lane) else lane
        followed = settings_in_force(self.target.generation_config, facts.config.temperature > 0)
        info = replace(self.info, generation_config=followed)
        return collect(facts, events, info, self.detokenizer, self.eos_token_ids)

    def race(
        self, image: Pictures, messages: Messages, config: DecodingConfig | None = None, **own: Unpack[LaneOverrides]
    ) -> Generator[RaceEvent]:
        """Race target-only against ``config``, side by side on one device with a clock each.

        If ``config`` drafts nothing, target-only runs by itself.
        """
        return self.race_lanes(race_lanes(self.lane(image, messages, config, **own)))

    def answer(
        self, image: Pictures, messages: Messages, config: DecodingConfig | None = None, **own: Unpack[LaneOverrides]
    ) -> Generator[RaceEvent]:
        """Answer in one lane, as a race of one: :meth:`collect_race` makes its trace."""
        return self.race_lanes([self.lane(image, messages, config, **own)])

    def race_sides(
        self,
        image: Pictures,
        messages: Messages,
        a: DecodingConfig,
        b: DecodingConfig,
        other: Pair | None = None,
        target_only: bool = False,
    ) -> Generator[RaceEvent]:
        """Race two configurations on one prompt, as lanes ``A`` and ``B``; :meth:`collect_race` makes their traces.

        Args:
            other: the pair that answers with ``b``, if it is not this one.
            target_only: this pair's target alone runs beside them.
        """
        one = lane_of(a, self.prompt(image, messages, a.max_new_tokens))
        second = other or self
        two = lane_of(b, one.prompt if other is None else other.prompt(image, messages, b.max_new_tokens))
        requests = [self.request(replace(one, name=SIDES[0])), second.request(replace(two, name=SIDES[1]))]
        if target_only:
            requests.append(self.request(lane_of(replace(a, drafter="none"), one.prompt)))
        return race(requests)

    def race_lanes(self, lanes: Sequence[Lane]) -> Generator[RaceEvent]:
        """Run lanes in turn, see :func:`~specllava.decoding.race`; each has caches of its own."""
        return race([self.request(lane) for lane in lanes])

    def collect_race(self, events: Iterable[RaceEvent]) -> Race:
        """Return a trace per lane of a race, finished or stopped; lanes that did not start are left out."""
        lanes: dict[str, tuple[LaneFacts, list[Event]]] = {}
        for event in events:
            lanes.setdefault(event.lane.name, (event.lane, []))[1].append(event.item)
        return Race({name: self.collect(lane, items) for name, (lane, items) in lanes.items()})

    def compare(
        self, image: Pictures, messages: Messages, config: DecodingConfig | None = None, **own: Unpack[LaneOverrides]
    ) -> Race:
        """Run a race to its end: traces of ``target-only`` and ``speculative``.

        Raises:
            ValueError: nothing is drafted, so there is nothing to compare.
        """
        if own.get("drafter") is None and config is not None and config.drafter == "none":
            raise ValueError('both lanes would be target-only: a comparison needs another drafter than "none"')
        media = open_media(image)
        picture = media[0] if len(media) == 1 and isinstance(media[0], Image.Image) else None
        return Race(self.collect_race(self.race(media, messages, config, **own)), picture)
