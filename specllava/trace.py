"""What happened while decoding: the one file format of page, export, recorded examples and tests. No torch.

A trace holds everything that is needed to redraw and explain a run with no model at hand. Text of a
token is looked up by id in ``texts``; nothing is ever searched for in strings.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from specllava.config import DecodingConfig, one_line
from specllava.tree import DraftTree, Pruned

SCHEMA_VERSION: Final = 1
NO_DRAFT: Final = "none"  # the name of a draft that is not there
MAX_FILE_BYTES = 32 * 2**20

FinishReason = Literal["eos", "length", "stopped"]
Seconds = Annotated[float, Field(ge=0.0)]
Probability = Annotated[float, Field(ge=0.0, le=1.000001)]


class _Record:
    """Plain dataclasses in the decode loop, strict ones when read from a file: unknown keys and NaN are refused."""

    __slots__ = ()
    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class Verification(_Record):
    """The target's verdict on a tree.

    Args:
        accepted: accepted nodes in order of depth, the root (which needs no verdict) left out.
        next_token: the target's own token after the last accepted node.
    """

    accepted: tuple[int, ...]
    next_token: int

    @property
    def path(self) -> tuple[int, ...]:
        """The accepted branch, the root included: the columns that both caches keep."""
        return (0, *self.accepted)


@dataclass(frozen=True, slots=True)
class TargetView(_Record):
    """How the target saw each node of a tree; every tuple has one entry per node.

    Args:
        choices: the target's most likely token after each node.
        choice_probs: its probability.
        margins: logit of the choice minus the logit of the runner-up: how near a tie was.
        token_probs: the target's probability of each node's own token given its path (1.0 for the root).
        token_ranks: rank of that token in the target's distribution, from 0 (0 for the root).
    """

    choices: tuple[int, ...]
    choice_probs: tuple[Probability, ...]
    margins: tuple[float, ...]
    token_probs: tuple[Probability, ...]
    token_ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepSeconds(_Record):
    """Wall-clock seconds of one step's own compute. Building the trace itself is not in it, in any lane."""

    draft: Seconds = 0.0
    verify: Seconds = 0.0
    rest: Seconds = 0.0

    @property
    def total(self) -> float:
        return self.draft + self.verify + self.rest


@dataclass(frozen=True, slots=True)
class Prefill(_Record):
    """The prompt's pass: the target's first token, and what it took.

    Args:
        prompt_tokens: length of the whole prompt.
        reused_tokens: those at its start that the target's cache held from an earlier turn, so that no pass was needed.
    """

    prompt_tokens: int
    first_token: int
    first_margin: float
    vision_seconds: Seconds = 0.0
    target_seconds: Seconds = 0.0
    draft_seconds: Seconds = 0.0
    reused_tokens: int = 0

    @property
    def total(self) -> float:
        return self.vision_seconds + self.target_seconds + self.draft_seconds


@dataclass(frozen=True, slots=True)
class StepTrace(_Record):
    """One step: the tree, the verdict, what was emitted, the target's view, the time, what was pruned (for display).

    ``emitted`` is accepted tokens and the target's next token, clipped at the limit or the end of
    the answer; it is never empty.
    """

    tree: DraftTree
    verification: Verification
    emitted: tuple[int, ...]
    target: TargetView
    seconds: StepSeconds
    pruned: tuple[Pruned, ...] = ()

    def __post_init__(self) -> None:
        nodes = len(self.tree)
        v = self.target
        if {len(t) for t in (v.choices, v.choice_probs, v.margins, v.token_probs, v.token_ranks)} != {nodes}:
            raise ValueError(f"the target's view must have one entry for each of the {nodes} nodes")
        for parent, node in zip(self.verification.path, self.verification.accepted, strict=False):
            if not 0 < node < nodes or self.tree.parents[node] != parent:
                raise ValueError(f"accepted nodes {self.verification.accepted} are not a branch of the tree")
        if not all(0 <= guess.parent < nodes for guess in self.pruned):
            raise ValueError(f"a pruned guess follows none of the {nodes} nodes")
        whole = (*(self.tree.tokens[n] for n in self.verification.accepted), self.verification.next_token)
        if not self.emitted or self.emitted != whole[: len(self.emitted)]:
            raise ValueError(f"emitted {self.emitted} is not a beginning of accepted tokens and next token {whole}")


@dataclass(frozen=True, slots=True)
class Setting(_Record):
    """What ran: enough to read a number with its circumstances. ``draft`` is :data:`NO_DRAFT` where there is none."""

    pair: str
    target: str
    draft: str
    device: str
    dtype: str
    threads: int
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DecodeTrace(_Record):
    """A whole run of one lane.

    Args:
        lane: name of the lane, such as ``target-only`` or ``speculative``.
        prompt: the last user message; ``image`` names where the picture came from, if anywhere.
        text: the answer, given tokens included, special tokens left out.
        texts: text of every token id that occurs in the trace.
        eos_token_ids: ids that end an answer.
        turn: messages of the user before the one that is answered.
        given: tokens at the start of the answer that were read with the prompt; ``token_ids`` are those after them.
    """

    lane: str
    setting: Setting
    config: DecodingConfig
    prompt: str
    image: str | None
    prefill: Prefill
    steps: tuple[StepTrace, ...]
    finish_reason: FinishReason
    text: str
    texts: dict[int, str]
    eos_token_ids: tuple[int, ...] = ()
    turn: int = 0
    given: tuple[int, ...] = ()
    schema_version: Literal[1] = field(kw_only=True)  # no default: a file must say it

    def __post_init__(self) -> None:
        missing = {token for token in self._tokens_used() if token not in self.texts}
        if missing:
            raise ValueError(f"the trace has no text for token ids {sorted(missing)[:5]}")

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Every emitted token, the prefill's first."""
        return (self.prefill.first_token, *(token for step in self.steps for token in step.emitted))

    @property
    def decode_seconds(self) -> float:
        """Seconds of all steps, the prefill apart."""
        return math.fsum(step.seconds.total for step in self.steps)

    def _tokens_used(self) -> Iterator[int]:
        yield self.prefill.first_token
        yield from self.given
        for step in self.steps:
            yield from step.tree.tokens
            yield from step.target.choices
            yield step.verification.next_token
            yield from (guess.token for guess in step.pruned)

    def to_json(self) -> bytes:
        """The trace as a JSON document; ``from_json`` gives it back, and again the same bytes."""
        return _ADAPTER.dump_json(self)

    @classmethod
    def from_json(cls, data: bytes | str) -> DecodeTrace:
        """Read and validate a trace.

        Raises:
            ValueError: too large, not JSON, another schema version, or inconsistent; one line.
        """
        if len(data) > MAX_FILE_BYTES:
            raise ValueError(f"the trace has {len(data):,} bytes, more than the {MAX_FILE_BYTES:,} that are read")
        try:
            return _ADAPTER.validate_json(data)
        except ValidationError as error:
            raise ValueError(f"not a specllava trace (schema {SCHEMA_VERSION}): {one_line(error)}") from error


_ADAPTER: TypeAdapter[DecodeTrace] = TypeAdapter(DecodeTrace)


def race_json(target_only: DecodeTrace | None, speculative: DecodeTrace | None, image: str | None = None) -> str:
    """The lanes as one race file, for ``visual.recorded`` to read; ``image`` names a picture that lies beside it."""
    named = [] if image is None else [f'"image":{json.dumps(image, ensure_ascii=False)}']
    lanes = (("target_only", target_only), ("speculative", speculative))
    parts = [*named, *(f'"{name}":{trace.to_json().decode()}' for name, trace in lanes if trace is not None)]
    return "{" + ",".join(parts) + "}\n"
