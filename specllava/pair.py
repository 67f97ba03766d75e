"""Public interface: a target with its draft, ready to answer."""

from __future__ import annotations

import platform
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from threading import Lock
from typing import Any, Unpack

import torch
import transformers
from transformers import PreTrainedModel, ProcessorMixin

from specllava.config import DecodingConfig
from specllava.engine.cpu import fastest_threads
from specllava.engine.cuda_graphs import WINDOW
from specllava.engine.decoders import Batch, LanguageModel
from specllava.engine.pool import EnginePools, KVCaches
from specllava.models.checkpoint import Checkpoint, Source
from specllava.models.drafts.draft_vlm import VisionSource, vision_source
from specllava.models.families import family_of
from specllava.models.family import Family, ImageFeatures
from specllava.models.images import Pictures, open_media
from specllava.models.language_model import checked_context, input_device, now
from specllava.models.loading import load_draft, load_target
from specllava.models.options import DraftReading, LoadOptions, PassesName, QuantizationName
from specllava.models.presets import draft_hint, preset_named
from specllava.models.tokens import Detokenizer, Messages, eos_token_ids, slot_ids
from specllava.prompt import Prompt, PromptBuilder, check_room
from specllava.race_file import Race
from specllava.spec_decode.drafter import Drafter, NoDraft
from specllava.spec_decode.logits_processing import AnswerSettings, answer_settings, check_settings, settings_in_force
from specllava.spec_decode.loop import Event, Lane, LaneOverrides, RaceEvent, Request, run_lanes
from specllava.spec_decode.ngram_drafter import NgramDrafter
from specllava.spec_decode.rejection_sampler import SeededRandom
from specllava.spec_decode.rules import build_rule
from specllava.spec_decode.tree_drafter import TreeDrafter
from specllava.trace import MAX_NAME, NO_DRAFT, SCHEMA_VERSION, DecodeTrace, Prefill, RunInfo, StepTrace, tokens_used

NODES = (60, 40, DecodingConfig().nodes)  # defaults on a GPU that are tried; 60 is EAGLE-2's for a 7B target
AFFORDABLE = 1.2  # times the seconds of a pass over one token
TIMED = 8  # passes
LOADING = Lock()  # transformers swaps functions and the default dtype of a process while it loads a model
CHAT_TOKENS = 1024  # caches that outlive an answer grow by as many, so that they seldom move


@dataclass(frozen=True)
class Pair:
    """A target and a draft that guesses for it. Every answer is the target's own, token for token.

    With a temperature and drawn guesses it has the target's distribution. In half precision, passes that are not exact
    may resolve a near-tie another way.

    Args:
        draft: ``None`` where there is no draft model.
        draft_processor: of a draft with a tower of its own, which it then reads pictures with.
        quantization: how the target's weights are stored.
        context_limit: tokens of prompt and answer, if fewer than the target can hold.
        passes: how they run, see :meth:`~specllava.engine.pool.EnginePools.build`.
        exact: target-only decodes by the very kernels that verify trees, and of a tree only the first branch, which has
            the order of the text, is accepted: equal bits in any precision.
        packed: pack the target's weights where this processor gains by it. Only of weights that this pair loaded and
            that do not learn meanwhile.
        threads: CPU threads of its passes; as torch has them without.
        nodes: size of trees that a pass affords on this device, which commands and page take unless one is given.
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
    packed: bool = False
    threads: int | None = None
    nodes: int | None = None

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
        notify: Callable[[str], None] = lambda line: None,
        **options: Any,
    ) -> Pair:
        """Load any target, and a draft for it, each from a directory or by an id of the hub.

        Args:
            draft: without one, only ``prompt-lookup`` and ``none`` can draft.
            name: of the pair; by default the target's.
            notify: receives a line on the memory that is needed, before anything is loaded.
            options: fields of :class:`~specllava.models.options.LoadOptions`.

        Raises:
            ValueError: no model there, more memory needed than there is, or models that do not fit each other; one
                line with the numbers.
        """
        name = name or Checkpoint.at(target).name
        chosen = LoadOptions(**options)
        with LOADING:
            loaded = load_target(name, target, draft, chosen, notify)
        check_settings(loaded.model.generation_config)
        models = (loaded.model, None, loaded.processor)
        pair = cls(
            name, *models, loaded.name, NO_DRAFT,
            quantization=chosen.quantization, context_limit=loaded.context, packed=loaded.packed,
        )  # fmt: skip
        return pair if draft is None else pair.with_draft(draft, notify, **asdict(chosen.reading))

    def with_draft(self, draft: Source, notify: Callable[[str], None] = lambda line: None, **reading: Any) -> Pair:
        """Return the same target, not loaded again, with the draft of a directory or of the hub.

        Args:
            notify: receives a line about weights that must be unpickled.
            reading: fields of :class:`~specllava.models.options.DraftReading`.

        Raises:
            ValueError: no model there, or one that does not fit the target.
        """
        with LOADING:
            loaded = load_draft(draft, self.target, self.processor, DraftReading(**reading), notify)
        drafting = {"draft": loaded.model, "draft_name": loaded.name, "draft_processor": loaded.processor}
        pair = replace(self, **drafting)
        if "engines" in vars(self):
            vars(pair)["engines"] = self.engines.with_draft(loaded.model)
        return pair

    @cached_property
    def device(self) -> torch.device:
        return input_device(self.target)

    @cached_property
    def engines(self) -> EnginePools:
        """The engines of its models, which outlive the answers that they serve.

        Raises:
            ValueError: passes that this device cannot run.
        """
        return EnginePools.build(self.target, self.draft, self.device, self.passes, self.exact, self.packed)

    @cached_property
    def family(self) -> Family:
        return family_of(self.target.config)

    @property
    def sees(self) -> bool:
        """Whether the target reads pictures."""
        return self.family.sees

    @property
    def draft_advice(self) -> str:
        """How this target gets a draft, for a message."""
        return draft_hint(self.target.config.name_or_path, self.family.name, self.family.draft_advice)

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
        return replace(self._info, passes=self.pass_mode)

    @cached_property
    def _info(self) -> RunInfo:
        device, precision = self.device, str(self.target.dtype).removeprefix("torch.")
        return RunInfo(
            pair=self.name,
            target=self.target_name,
            draft=self.draft_name,
            device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            dtype=precision if self.quantization == "none" else f"{precision} {self.quantization}",
            threads=self.threads or torch.get_num_threads(),
            versions={
                "python": platform.python_version(),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
            },
            draft_reads="states" if self.draft_vision == "states" else None,
            generation_config=settings_in_force(self.target.generation_config, sampling=False),
        )

    @property
    def pass_mode(self) -> str | None:
        """How passes have run so far, by model where these differ; ``None``: all eager."""
        pools = {"target": self.engines.target, "draft": self.engines.draft}
        modes = {name: pool.mode for name, pool in pools.items() if pool is not None}
        line = modes["target"]
        if len(set(modes.values())) > 1:
            line = "; ".join(f"{name}: {mode}" for name, mode in modes.items())
        return None if line == "eager" else f"{line}; exact" if self.exact else line

    @cached_property
    def detokenizer(self) -> Detokenizer:
        return Detokenizer(self.processor.tokenizer)

    @cached_property
    def prompt_builder(self) -> PromptBuilder:
        drafting = (self.draft, self.draft_processor, self.draft_vision)
        return PromptBuilder(self.target_name, self.processor, self.target, *drafting, self.context)

    def warm_up(self, threads: int = 0) -> Pair:
        """Return this pair as it runs best on its device, which takes about a second.

        On a CPU with the number of threads, on a GPU with the number of nodes that measured passes suggest. A GPU also
        captures the passes that a race begins with.

        Args:
            threads: CPU threads of its passes, not measured.

        Raises:
            ValueError: passes that this device cannot run.
        """
        if self.device.type == "cpu":
            pair = replace(self, threads=threads or self._fastest_threads())
        else:
            pair = replace(self, threads=threads or None, nodes=self._affordable_nodes())
        vars(pair)["engines"] = self.engines
        return pair

    def _fastest_threads(self) -> int:
        rows = DecodingConfig().nodes + 1
        engine = KVCaches(self.engines).target(2 * rows + 1)
        assert isinstance(engine.decoder, LanguageModel)
        engine.decoder.begin()

        def step() -> None:
            """Run a pass over one token, and two over as many as a tree has."""
            engine.truncate(0)
            for width in (rows, 1, rows):
                engine.forward(Batch(range(width)))

        return fastest_threads(step, torch.get_num_threads())

    def _affordable_nodes(self) -> int:
        """Return the most nodes of :data:`NODES` whose pass takes hardly longer than one over a single token.

        Measured where a race's lanes have read a prompt, and captured what they need.
        """
        prompt = self.prompt(None, "Describe it.")
        tokens = min(WINDOW, self.context - prompt.length)
        config = DecodingConfig(drafter="none" if self.draft is None else "model", max_new_tokens=tokens)
        requests = [self.request(lane, record=False) for lane in Lane.of(config, prompt).with_target_only()]
        for request in requests:
            request.prefill()
        engine = requests[-1].engine

        def seconds(rows: int) -> float:
            started = 0.0
            for run in range(1 + TIMED):
                if run == 1:  # the first one captures
                    started = now(self.device)
                engine.truncate(prompt.length)
                engine.forward(Batch(range(rows)))
            return now(self.device) - started

        most = AFFORDABLE * seconds(1)
        return next((nodes for nodes in NODES if seconds(nodes + 1) <= most), NODES[-1])

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
        """Make the request that answers a lane; :func:`~specllava.spec_decode.loop.stream` runs it.

        Args:
            caches: of earlier answers, to go on with; without them nothing is reused.
            record: record the target's view of every node, outside every clock.

        Raises:
            ValueError: prompt and limit do not fit the context, or there is no draft to draft with; a rule that does
                not fit its drafter or drawn children.
        """
        if self.threads is not None and torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)  # of the thread that decodes
        config, prompt = lane.config, lane.prompt
        check_room(self.context, prompt.length, config.max_new_tokens, prompt.turn)
        length = prompt.length + config.max_new_tokens
        if caches is not None:
            length = min(self.context, -(-length // CHAT_TOKENS) * CHAT_TOKENS)
        tokenizer, random = self.processor.tokenizer, SeededRandom(config.seed)
        settings = answer_settings(self.target, tokenizer, config, prompt.input_ids, self.eos_token_ids)
        drafter = self._drafter(lane, settings, random, length)
        caches = KVCaches(self.engines) if caches is None else caches
        return Request(lane, self.target, drafter, settings, random, caches, length, record)

    def _drafter(self, lane: Lane, settings: AnswerSettings, random: SeededRandom, length: int) -> Drafter:
        """Build the drafter of a lane for one answer.

        Raises:
            ValueError: there is no draft to draft with, or a rule that does not fit its drafter or drawn children.
        """
        config, rule = lane.config, lane.rule
        grows = lane.drafter is None and config.drafter == "model"
        if grows and self.draft is None:
            ways = f'use drafter "prompt-lookup" or "none", or {self.draft_advice}'
            raise ValueError(f"the pair {self.name} has no draft: {ways}")
        if rule is not None and not grows:
            name = config.drafter if lane.drafter is None else lane.drafter.name
            raise ValueError(f"the drafter {name} grows no trees, so the rule {rule.name} has no use")
        if rule is not None and config.children == "drawn" and not rule.drawable:
            raise ValueError(
                f"the rule {rule.name} is not drawable: set children to best, or drawable if which siblings its trees"
                " have does not depend on their tokens"
            )
        if lane.drafter is not None:
            return lane.drafter
        if self.draft is not None and grows:
            models = self.target, self.draft
            grown_by = build_rule(config) if rule is None else rule  # a rule may be false to Python
            return TreeDrafter(*models, config, grown_by, settings, random, length)
        if config.drafter == "prompt-lookup":
            return NgramDrafter(config.ngram, config.nodes, frozenset(slot_ids(self.target.config)))
        return NoDraft()

    def lane(
        self, image: Pictures, messages: Messages, config: DecodingConfig | None = None, **own: Unpack[LaneOverrides]
    ) -> Lane:
        """Build a lane of a prompt, with its default name.

        Args:
            own: ``rule=`` and ``drafter=``: objects that replace those of ``config`` (``docs/extending.md``).
        """
        config = config or DecodingConfig()
        return Lane.of(config, self.prompt(image, messages, config.max_new_tokens), **own)

    def stream(
        self, image: Pictures, messages: Messages, config: DecodingConfig | None = None, **own: Unpack[LaneOverrides]
    ) -> Iterator[Event]:
        """Decode step by step: a ``Prefill``, then a ``StepTrace`` per target pass. For ``own`` see :meth:`lane`."""
        return (event.item for event in self.race([self.lane(image, messages, config, **own)]))

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

    def compare(
        self, image: Pictures, messages: Messages, config: DecodingConfig | None = None, **own: Unpack[LaneOverrides]
    ) -> Race:
        """Race ``target-only`` against ``config`` to the end, on one device with a clock each.

        Raises:
            ValueError: nothing is drafted, so there is nothing to compare.
        """
        media = open_media(image)
        lanes = self.lane(media, messages, config, **own).with_target_only()
        if len(lanes) == 1:
            raise ValueError('both lanes would be target-only: a comparison needs another drafter than "none"')
        return Race(self.collect(self.race(lanes)), media[0] if len(media) == 1 else None)

    def run(self, lane: Lane, record: bool = True) -> DecodeTrace:
        """Decode one lane to the end."""
        return self.collect(self.race([lane], record))[lane.name]

    def race(self, lanes: Sequence[Lane], record: bool = True) -> Generator[RaceEvent]:
        """Run named lanes in turn, see :func:`~specllava.spec_decode.loop.run_lanes`; each has caches of its own."""
        return run_lanes([self.request(lane, record=record) for lane in lanes])

    def collect(self, events: Iterable[RaceEvent]) -> Race:
        """Return a trace per lane of a race, finished or stopped; lanes that did not start are left out."""
        lanes: dict[str, tuple[Lane, list[Event]]] = {}
        for event in events:
            lanes.setdefault(event.lane.name, (event.lane, []))[1].append(event.item)
        return Race({name: self._trace(lane, items) for name, (lane, items) in lanes.items()})

    def _trace(self, lane: Lane, items: Sequence[Event]) -> DecodeTrace:
        """Return the trace of a lane.

        Raises:
            ValueError: events that are no prefill and then steps.
        """
        prefill, *rest = items
        steps = tuple(step for step in rest if isinstance(step, StepTrace))
        if not isinstance(prefill, Prefill) or len(steps) != len(rest):
            raise ValueError("a run is a prefill and then steps")
        config, prompt = lane.config, lane.prompt
        ids = [prefill.first_token, *(token for step in steps for token in step.emitted)]
        return DecodeTrace(
            schema_version=SCHEMA_VERSION,
            lane=lane.name,
            setting=replace(
                self.info,
                generation_config=settings_in_force(self.target.generation_config, config.temperature > 0),
            ),
            config=config,
            prompt=prompt.text,
            image=", ".join("{} x {} pixels".format(*size) for size in prompt.image_sizes) or None,
            prefill=prefill,
            steps=steps,
            finish_reason=(steps[-1] if steps else prefill).finished or "stopped",
            text=self.detokenizer.decode(ids),
            texts={token: self.detokenizer.text_of(token) for token in sorted({*tokens_used(prefill, steps)})},
            eos_token_ids=tuple(sorted(self.eos_token_ids)),
            turn=prompt.turn,
            rule=None if lane.rule is None else lane.rule.name[:MAX_NAME],
            drafter=None if lane.drafter is None else lane.drafter.name[:MAX_NAME],
        )
