"""Traces of decoding: the one file format of page, export, recorded examples and tests. No torch.

A trace holds everything that is needed to redraw and explain a run with no model at hand. Text of a
token is looked up by id in ``texts``; nothing is ever searched for in strings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from specllava.config import RULE_CHOICES, DecodingConfig, one_line, short
from specllava.files import PAGE_HINT
from specllava.trace_fields import (
    Count,
    Many,
    Probability,
    Record,
    Seconds,
    TokenTexts,
    Versions,
    parse_json,
    without_retired,
)
from specllava.tree import DraftTree, Pruned

if TYPE_CHECKING:
    from pathlib import Path

    from PIL import Image


MAX_GRID: Final = 32  # tiles a side
Grid = Annotated[int, Field(ge=0, le=MAX_GRID)]


@dataclass(frozen=True, slots=True)
class Grounding(Record):
    """The target's probability of each token of its answer: with the picture, with a grey one, with a part of it grey.

    For the parts a grey square moves over the picture, tile by tile, line by line.

    Args:
        probs: with the picture, one entry per token.
        blank_probs: with a grey picture of the same size.
        blank_choices: the target's likeliest token with the grey picture.
        factor: how many times less likely without the picture a token is that needs it.
        grid: tiles a side of the picture; 0 where no parts were greyed.
        window: tiles a side of the grey square.
        occluded: one row per grounded token, in order: its probability at each place of the square.
    """

    probs: Many[Probability]
    blank_probs: Many[Probability]
    blank_choices: Many[Count]
    factor: Annotated[float, Field(ge=1.0)]
    grid: Grid = 0
    window: Grid = 0
    occluded: Many[Many[Probability]] = ()

    @property
    def grounded(self) -> tuple[int, ...]:
        """Positions of the tokens that need the picture: by ``factor`` less likely without it."""
        pairs = zip(self.probs, self.blank_probs, strict=True)
        return tuple(at for at, (seen, blank) in enumerate(pairs) if 0 < seen >= self.factor * blank)

    @property
    def places(self) -> int:
        """Places of the grey square along a side of the picture; 0 where no parts were greyed."""
        return self.grid - self.window + 1 if self.grid else 0

    def __post_init__(self) -> None:
        if not len(self.probs) == len(self.blank_probs) == len(self.blank_choices):
            raise ValueError(
                "a grounding needs one entry per token in each list:"
                f" {len(self.probs)}, {len(self.blank_probs)} and {len(self.blank_choices)}"
            )
        if (self.grid or self.window) and not 0 < self.window <= self.grid:
            raise ValueError(f"a square of {self.window} tiles a side does not fit a picture of {self.grid}")
        rows, count = len(self.grounded) if self.grid else 0, self.places**2
        if len(self.occluded) != rows or any(len(row) != count for row in self.occluded):
            raise ValueError(f"a grounding needs {count} probabilities for each of {rows} grounded tokens")


class Playable:
    """A trace or a race, which a notebook shows in the player where it is the last expression of a cell."""

    __slots__ = ()

    def show(self, picture: Image.Image | str | Path | None = None) -> None:
        """Show the run in the player, in the output of a notebook's cell.

        Args:
            picture: what the models looked at; a race of ``Pair.compare`` knows it.

        Raises:
            ValueError: no notebook, no lane, more than can be drawn, a run that did not record its steps, or what draws
                is not installed.
        """
        try:
            from visual.notebook import show
        except ModuleNotFoundError as missing:
            raise ValueError(PAGE_HINT) from missing
        show(self, picture)

    def _repr_html_(self) -> str | None:
        """Return the player as HTML; ``None`` for what cannot be drawn, which a notebook then prints as text."""
        try:
            from visual.notebook import run_html

            return run_html(self)
        except (ValueError, ModuleNotFoundError):
            return None


MAX_NAME: Final = 100  # characters of a rule's name
SCHEMA_VERSION: Final = 1
NO_DRAFT: Final = "none"  # the name of a draft that is not there
TARGET_ONLY, SPECULATIVE = "target-only", "speculative"  # names of lanes
MAX_FILE_BYTES = 32 * 2**20
MAX_SETTINGS = 2000  # characters


def _any_rule(value: object, read: ValidatorFunctionWrapHandler) -> DecodingConfig:
    """Read options without retired ones, also of a rule that is not known here: drawing a tree needs its name alone."""
    value = without_retired(DecodingConfig.__name__, value)
    rule = value.get("rule") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(rule, str) or rule in RULE_CHOICES:
        known: DecodingConfig = read(value)
        return known
    if not rule.isprintable() or not 0 < len(rule) <= MAX_NAME:
        raise ValueError(f"a rule's name has 1 to {MAX_NAME} printable characters")
    substitute = next(name for name, choice in RULE_CHOICES.items() if choice.drawable)  # which goes with all options
    config: DecodingConfig = read({**value, "rule": substitute})
    object.__setattr__(config, "rule", rule)
    return config


RecordedConfig = Annotated[DecodingConfig, WrapValidator(_any_rule)]


@dataclass(frozen=True, slots=True)
class Verification(Record):
    """The target's verdict on a tree.

    Args:
        accepted: accepted nodes in order of depth, the root (which needs no verdict) left out.
        bonus_token: the target's own token after the last accepted node.
    """

    accepted: Many[int]
    bonus_token: Annotated[int, Field(alias="next_token")]

    @property
    def path(self) -> tuple[int, ...]:
        """The accepted branch, the root included: the slots that both caches keep."""
        return (0, *self.accepted)


@dataclass(frozen=True, slots=True)
class TargetView(Record):
    """The target's distribution after each node of a tree; every tuple has one entry per node.

    Args:
        choices: the target's most likely token after each node.
        margins: logit of the choice minus the logit of the runner-up: how near a tie was.
        token_probs: the target's probability of each node's own token given its path (1.0 for the root).
        token_ranks: rank of that token in the target's distribution, from 0 (0 for the root).
    """

    choices: Many[int]
    choice_probs: Many[Probability]
    margins: Many[float]
    token_probs: Many[Probability]
    token_ranks: Many[Count]


@dataclass(frozen=True, slots=True)
class Draw(Record):
    """One number that a sampling verifier drew, and what it decided.

    Either a guessed token was accepted or refused, or the target drew a token of its own. All probabilities are those
    of that moment: after guesses were refused at ``node``, of the residual distributions.

    Args:
        node: the node before the token.
        token: the guessed token, or the one that the target drew.
        uniform: the number, from 0 up to but not including 1.
        acceptance: the guess was accepted if ``uniform`` was below it; ``None`` where the target drew its own.
        target_prob, draft_prob: p and q of ``token``; q is ``None`` where the target drew its own.
        tokens: the likeliest few of target and draft, ``token`` among them, by id.
        target_probs, draft_probs: their probabilities; the latter are empty where the target drew its own.
        starts: probability of all tokens with smaller ids than each of ``tokens``, where the target drew its own. The
            draw fell on the token whose start is the last that is not above ``uniform``. Empty otherwise.
    """

    node: Count
    token: Count
    uniform: Annotated[float, Field(ge=0.0, lt=1.0)]
    acceptance: Probability | None
    target_prob: Probability
    draft_prob: Probability | None
    tokens: Many[Count]
    target_probs: Many[Probability]
    draft_probs: Many[Probability] = ()
    starts: Many[Probability] = ()

    @property
    def margin(self) -> float | None:
        """How far the number is from the next token's share; ``None`` where the target drew none of its own."""
        if self.acceptance is not None:
            return None
        start = self.starts[self.tokens.index(self.token)]
        return max(0.0, min(self.uniform - start, start + self.target_prob - self.uniform))

    @property
    def accepted(self) -> bool:
        """Whether the token was accepted: a guess below its acceptance, or any token that the target drew."""
        return self.acceptance is None or self.uniform < self.acceptance

    def __post_init__(self) -> None:
        judged = self.acceptance is not None
        columns = (self.target_probs, self.draft_probs if judged else self.starts)
        empty = self.starts if judged else self.draft_probs
        if empty or judged == (self.draft_prob is None) or any(len(one) != len(self.tokens) for one in columns):
            raise ValueError(f"a draw must have one probability of each kind for each of its {len(self.tokens)} tokens")
        if self.token not in self.tokens:
            raise ValueError(f"token {self.token} is not among those that its draw names")


FinishReason = Literal["eos", "stop_string", "length", "stopped"]
# A field that is left out of the files of runs without it.
UNSET: Final = Field(exclude_if=lambda value: value is None)
OwnName = Annotated[str | None, Field(max_length=MAX_NAME), UNSET]  # of an object of the caller
Described = Annotated[str | None, Field(max_length=MAX_SETTINGS), UNSET]
# Why an event was the last of its answer; in a file it is a field of the trace as a whole.
Finished = Annotated[FinishReason | None, Field(exclude=True)]


@dataclass(frozen=True, slots=True)
class StepSeconds(Record):
    """Wall-clock seconds of one step's own compute. Building the trace itself is not in it, in any lane."""

    draft: Seconds = 0.0
    verify: Seconds = 0.0
    keep: Annotated[Seconds, Field(alias="rest")] = 0.0

    @property
    def total(self) -> float:
        return self.draft + self.verify + self.keep


@dataclass(frozen=True, slots=True)
class Prefill(Record):
    """The prompt's pass: the target's first token, and the time that it took.

    Args:
        reused_tokens: those at its start that the target's cache held from an earlier turn, so that no pass was needed.
        image_tokens: prompt tokens that hold pictures.
    """

    prompt_tokens: Count
    first_token: int
    first_margin: float
    vision_seconds: Seconds = 0.0
    target_seconds: Seconds = 0.0
    draft_seconds: Seconds = 0.0
    reused_tokens: Count = 0
    image_tokens: Annotated[Count, Field(exclude_if=lambda count: count == 0)] = 0
    finished: Finished = field(default=None, compare=False)

    @property
    def total(self) -> float:
        return self.vision_seconds + self.target_seconds + self.draft_seconds


@dataclass(frozen=True, slots=True)
class StepTrace(Record):
    """One step: the tree, the verdict, what was emitted, the target's view, the time, what was pruned (for display).

    ``target`` is ``None`` where it was not recorded: then the step cannot be explained, nor displayed. ``draws`` are
    the numbers that a sampling verifier drew, in their order; none without a temperature, or where not recorded.

    ``emitted`` is accepted tokens and the target's next token, clipped at the limit or the end of
    the answer; it is never empty.
    """

    tree: DraftTree
    verification: Verification
    emitted: Many[int]
    target: TargetView | None
    seconds: StepSeconds
    pruned: Many[Pruned] = ()
    draws: Annotated[Many[Draw], Field(exclude_if=lambda draws: not draws)] = ()
    finished: Finished = field(default=None, compare=False)

    @property
    def view(self) -> TargetView:
        """The target's view of every node.

        Raises:
            ValueError: the run did not record it.
        """
        if self.target is None:
            raise ValueError("this run did not record what the target thought of every node")
        return self.target

    @property
    def emitted_nodes(self) -> tuple[int, ...]:
        """The accepted nodes that are part of the answer: all, unless it ended or reached its limit among them."""
        return self.verification.accepted[: len(self.emitted)]

    @property
    def bonus_unused(self) -> bool:
        """Whether the answer ended or reached its limit before the bonus token."""
        return len(self.emitted) <= len(self.verification.accepted)

    def __post_init__(self) -> None:
        nodes = len(self.tree)
        v = self.target
        columns = () if v is None else (v.choices, v.choice_probs, v.margins, v.token_probs, v.token_ranks)
        if any(len(column) != nodes for column in columns):
            raise ValueError(f"the target's view must have one entry for each of the {nodes} nodes")
        for parent, node in zip(self.verification.path, self.verification.accepted, strict=False):
            if not 0 < node < nodes or self.tree.parents[node] != parent:
                raise ValueError(f"accepted nodes {self.verification.accepted} are not a branch of the tree")
        if not all(0 <= guess.parent < nodes for guess in self.pruned):
            raise ValueError(f"a pruned guess follows none of the {nodes} nodes")
        if not all(0 <= draw.node < nodes for draw in self.draws):
            raise ValueError(f"a draw follows none of the {nodes} nodes")
        whole = (*(self.tree.tokens[n] for n in self.verification.accepted), self.verification.bonus_token)
        if not self.emitted or self.emitted != whole[: len(self.emitted)]:
            raise ValueError(f"emitted {self.emitted} is not a beginning of accepted tokens and next token {whole}")


@dataclass(frozen=True, slots=True)
class RunInfo(Record):
    """Models, device, precision and versions of a run. ``draft`` is :data:`NO_DRAFT` where there is none.

    Args:
        draft_reads: ``states`` of a draft that guesses from the target's hidden states.
        generation_config: settings of that file of the target's which the answer follows, with their values.
        passes: how they ran, if not in the shapes that they came in.
    """

    pair: str
    target: str
    draft: str
    device: str
    dtype: str
    threads: Count
    versions: Versions = field(default_factory=dict)
    draft_reads: Annotated[Literal["states"] | None, UNSET] = None
    generation_config: Described = None
    passes: Described = None


@dataclass(frozen=True, slots=True)
class DecodeTrace(Record, Playable):
    """A whole run of one lane.

    Args:
        lane: name of the lane, such as ``target-only`` or ``speculative``.
        prompt: the last user message; ``image`` has the sizes of its pictures, if any.
        text: the answer, special tokens left out.
        texts: text of every token id that occurs in the trace.
        turn: messages of the user before the one that is answered.
        rule, drafter: names of objects that replaced those of ``config``.
        grounding: of the answer in its picture, where that was measured.
    """

    lane: str
    setting: RunInfo
    config: RecordedConfig
    prompt: str
    image: str | None
    prefill: Prefill
    steps: Many[StepTrace]
    finish_reason: FinishReason
    text: str
    texts: TokenTexts
    eos_token_ids: Many[Count] = ()
    turn: Count = 0
    rule: OwnName = None
    drafter: OwnName = None
    grounding: Annotated[Grounding | None, UNSET] = None
    schema_version: Literal[1] = field(kw_only=True)  # no default: required in a file

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Every emitted token, the prefill's first."""
        return (self.prefill.first_token, *(token for step in self.steps for token in step.emitted))

    @property
    def decode_seconds(self) -> float:
        """Seconds of all steps, the prefill apart."""
        return math.fsum(step.seconds.total for step in self.steps)

    def to_json(self) -> bytes:
        """Write the trace as a JSON document; ``from_json`` restores it, and writing it again gives the same bytes."""
        # Unwarned: the rule may have a name that is not known here.
        return _ADAPTER.dump_json(self, by_alias=True, warnings=False)

    @classmethod
    def from_json(cls, data: bytes | str) -> DecodeTrace:
        """Read and validate a trace.

        Raises:
            ValueError: too large, not JSON, another schema version, inconsistent, or what no run can be; one line.
        """
        if len(data) > MAX_FILE_BYTES:
            raise ValueError(f"the trace has {len(data):,} bytes, more than the {MAX_FILE_BYTES:,} that are read")
        try:
            return read_trace(parse_json(data))
        except ValueError as error:
            raise ValueError(f"not a specllava trace (schema {SCHEMA_VERSION}): {error}") from error


def read_trace(document: object, where: str = "") -> DecodeTrace:
    """Validate a trace that was parsed from JSON.

    Args:
        where: name of its lane, for the message.

    Raises:
        ValueError: another schema version, inconsistent, or what no run can be; one line.
    """
    prefix = f"{where}." if where else ""
    if isinstance(document, dict) and "schema_version" in document:
        version = document["schema_version"]
        if type(version) is not int or version != SCHEMA_VERSION:
            above = type(version) is int and version > SCHEMA_VERSION
            why = "the file is of a newer specllava, and this one reads" if above else "it must be the integer"
            raise ValueError(f"{prefix}schema_version = {short(version)}: {why} {SCHEMA_VERSION}")
    try:
        trace = _ADAPTER.validate_python(document)
    except ValidationError as error:
        kinds = {item["type"] for item in error.errors(include_url=False)}
        unknown = {"unexpected_keyword_argument", "literal_error"} & kinds
        newer = "; the file may be of a newer specllava that knows it" if unknown else ""
        raise ValueError(one_line(error, where=prefix) + newer) from error
    _check_possible(trace, prefix)
    return trace


def _check_possible(trace: DecodeTrace, prefix: str) -> None:
    """Refuse a trace that no run can produce, however well-formed its file.

    Only for files: the decode loop does none of it, and a live run's trace is made anew with every step.
    """
    used = {*tokens_used(trace.prefill, trace.steps)}
    if trace.grounding is not None:
        used.update(trace.grounding.blank_choices)
        if len(trace.grounding.probs) != len(trace.token_ids):
            raise ValueError(
                f"{prefix}grounding: {len(trace.grounding.probs)} probabilities for {len(trace.token_ids)} tokens"
            )
    missing = used - {*trace.texts}
    if missing:
        raise ValueError(f"{prefix}texts: the trace has no text for token ids {short(sorted(missing)[:5])}")
    if trace.finish_reason == "eos" and trace.token_ids[-1] not in trace.eos_token_ids:
        last = trace.token_ids[-1]
        raise ValueError(f"{prefix}finish_reason = 'eos': the last token, {last}, does not end an answer")
    if trace.config.temperature > 0:
        return
    for number, step in enumerate(trace.steps):
        verdict = step.verification
        if step.target is None:
            continue
        path_tokens = (*(step.tree.tokens[node] for node in verdict.accepted), verdict.bonus_token)
        for node, token in zip(verdict.path, path_tokens, strict=True):
            if token != step.view.choices[node]:
                raise ValueError(
                    f"{prefix}steps.{number}: without a temperature the target's choice after node {node} stands,"
                    f" {step.view.choices[node]}, not {token}"
                )


def tokens_used(prefill: Prefill, steps: Iterable[StepTrace]) -> Iterator[int]:
    """Yield every token id that a run mentions, some several times: those whose texts a trace holds."""
    yield prefill.first_token
    for step in steps:
        yield from step.tree.tokens
        if step.target is not None:
            yield from step.view.choices
        yield step.verification.bonus_token
        yield from (guess.token for guess in step.pruned)
        for draw in step.draws:
            yield from draw.tokens


_ADAPTER: TypeAdapter[DecodeTrace] = TypeAdapter(DecodeTrace)
