"""Options of decoding and limits of a page: the only source of defaults. No torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from reprlib import Repr
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

import tyro
from annotated_types import Le
from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo

from specllava.trace_fields import RETIRED_RULES, retired_rule

MIB: Final = 2**20


@dataclass(frozen=True, slots=True, config=ConfigDict(use_attribute_docstrings=True, extra="forbid"))
class Limits:
    """Limits of a page.

    Raises:
        pydantic.ValidationError: a limit below 1, or above what options, files or models bear; names field and bound.
    """

    upload_bytes: Annotated[int, Field(ge=1)] = 20 * MIB
    """Bytes of an uploaded picture."""

    pixels: Annotated[int, Field(ge=1, le=16_000_000)] = 16_000_000
    """Pixels of a picture that is decoded; decoders need up to 15 bytes for each."""

    prompt_characters: Annotated[int, Field(ge=1, le=20_000)] = 20_000
    """Characters of a question."""

    new_tokens: Annotated[int, Field(ge=1, le=4096)] = 4096
    """Tokens of an answer; models themselves give as many as their context holds."""

    depth: Annotated[int, Field(ge=1, le=32)] = 32
    """Levels of a tree."""

    nodes: Annotated[int, Field(ge=1, le=256)] = 256
    """Guesses of a tree."""

    width: Annotated[int, Field(ge=1, le=64)] = 64
    """Nodes of one level that grow children."""

    branches: Annotated[int, Field(ge=1, le=16)] = 16
    """Children of one node."""

    seconds_per_run: Annotated[float, Field(gt=0)] = 120.0
    """Time limit of a race, a measurement or a call in seconds; partial results are shown."""

    waiting: Annotated[int, Field(ge=1)] = 32
    """Queue size, of all visitors; further runs are rejected."""

    runs_per_minute: Annotated[int, Field(ge=1)] = 60
    """Runs that one address may begin in a minute, page and calls together."""

    events_per_minute: Annotated[int, Field(ge=1)] = 1200
    """Other requests, such as clicks and polls of the queue, that one address may send in a minute."""

    uploads_per_minute: Annotated[int, Field(ge=1)] = 60
    """Uploads that one address may send in a minute, and as many that it may have opened."""

    trace_bytes: Annotated[int, Field(ge=1, le=4 * MIB)] = 4 * MIB
    """Bytes of a race file that is opened."""


def upper_bound(name: str) -> int:
    """Return the largest value that a limit may be given: the bound of the option or of the file that it is about."""
    field: FieldInfo = vars(Limits)["__pydantic_fields__"][name]
    bounds: list[Any] = [bound.le for bound in field.metadata if isinstance(bound, Le)]
    return int(bounds[0])


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """A drafter or a tree rule that the package offers by name.

    Args:
        help: one clause for ``--help`` and the page.
        options: fields of ``DecodingConfig`` that it reads; with ``rule``, also what that rule reads.
        drawable: children may be drawn from the draft: which siblings its trees have does not depend on their tokens.
    """

    help: str
    options: tuple[str, ...] = ()
    drawable: bool = False


DRAFTER_CHOICES: Final[Mapping[str, Choice]] = MappingProxyType(
    {
        "model": Choice("the draft", ("rule", "depth", "children")),
        "prompt-lookup": Choice(
            "what followed the same words earlier in the text, no model", ("depth", "nodes", "ngram")
        ),
        "none": Choice("nobody, which is target-only decoding in the same loop"),
    }
)
RULE_CHOICES: Final[Mapping[str, Choice]] = MappingProxyType(
    {
        "entropy": Choice(
            "branch where the draft is unsure (Spec-LLaVA)",
            ("width", "nodes", "min_log_prob", "entropy_threshold", "max_branches"),
        ),
        "chain": Choice("one best guess after the other", ("nodes", "min_log_prob")),
        "fixed": Choice("so many children per level (Medusa)", ("branching", "depth", "nodes"), drawable=True),
        "topk": Choice("a beam, re-ranked (EAGLE-2)", ("width", "nodes")),
        "sequoia": Choice(
            "the best shape for measured acceptance", ("rank_acceptance", "depth", "nodes"), drawable=True
        ),
    }
)
RULES: Final = tuple(RULE_CHOICES)
# The chain that trees are compared with; its floor stops it sooner than a tree.
CHAIN_OPTIONS: Final[Mapping[str, Any]] = MappingProxyType({"rule": "chain", "min_log_prob": -1.0})
# Options that are numbers, and the values that a sweep tries beside the present one.
SWEEP_VALUES: Final[Mapping[str, tuple[float, ...]]] = MappingProxyType(
    {
        "entropy_threshold": (0.0, 0.1, 0.3, 0.6, 1.0, 1.5, 2.5),
        "max_branches": (1, 2, 3, 4, 6, 8),
        "depth": (1, 2, 3, 4, 6, 8, 10, 12),
        "nodes": (2, 4, 8, 12, 16, 24, 32, 48),
    }
)
if TYPE_CHECKING:
    RuleName = str
    DrafterName = str
else:  # one choice per name that is offered
    RuleName = Literal[RULES]
    DrafterName = Literal[tuple(DRAFTER_CHOICES)]
MAX_GUESSES: Final = upper_bound("nodes")  # of one tree
MAX_CHILDREN: Final = upper_bound("branches")  # of one node
Children = Annotated[int, Field(ge=1, le=MAX_CHILDREN)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
LISTED: Final = Field(min_length=1, max_length=16, fail_fast=True)  # of an option that is a list


@dataclasses.dataclass(frozen=True, slots=True)
class SliderRange:
    """How far a number is usually raised, in steps; its bounds allow more."""

    high: float
    step: float


def _choices(title: str, question: str, choices: Mapping[str, Choice]) -> Any:
    """Build the title and the help of an option; the help is that of its choices."""
    text = " ".join([question, *(f"{name}: {choice.help}." for name, choice in choices.items())])
    return Field(title=title, description=text), tyro.conf.arg(help=text)


def _not_retired(rule: object) -> object:
    if rule in RETIRED_RULES:
        raise ValueError(retired_rule(str(rule)))
    return rule


@dataclass(frozen=True, slots=True, config=ConfigDict(use_attribute_docstrings=True, extra="forbid"))
class DecodingConfig:
    """Options of decoding: the drafter, the growth of the tree, the limits.

    The paper (arXiv 2509.11961) publishes no values for its threshold, branches, depth and node
    budget; these defaults were measured on the toy pair (``docs/results.md``).

    Raises:
        pydantic.ValidationError: a value outside its bounds; a ``ValueError`` that names field and bound.
    """

    drafter: Annotated[
        DrafterName, *_choices("Who guesses (drafter)", "Who proposes tokens.", DRAFTER_CHOICES)
    ] = "model"

    rule: Annotated[
        RuleName,
        BeforeValidator(_not_retired),
        *_choices("How the tree grows (rule)", "How the tree grows.", RULE_CHOICES),
    ] = "entropy"

    max_new_tokens: Annotated[
        int, Field(ge=1, title="Longest answer (new tokens)"), SliderRange(512, 16)
    ] = 160
    """Stop after this many tokens, if the answer has not ended before."""

    depth: Annotated[
        int, Field(ge=1, le=upper_bound("depth"), title="Levels of guesses (tree depth)"), SliderRange(20, 1)
    ] = 16
    """Tokens that the draft looks ahead at most; each level costs one draft pass."""

    nodes: Annotated[
        int, Field(ge=1, le=MAX_GUESSES, title="Guesses checked in one pass (tree size)"), SliderRange(64, 1)
    ] = 20
    """Guessed tokens sent to the target at most, on a GPU 60, 40 or 20 as measured; the likeliest paths are kept."""

    entropy_threshold: Annotated[
        float,
        Field(ge=0.0, le=12.0, title="Branch above this doubt (entropy threshold, nats)"),
        SliderRange(2.5, 0.05),
    ] = 0.3
    """Nats. Below it the draft counts as sure and a node gets one child; above it the node branches."""

    max_branches: Annotated[
        int, Field(ge=1, le=MAX_CHILDREN, title="Branches of an unsure node (branching factor)"), SliderRange(8, 1)
    ] = 3
    """Children of an unsure node at most; it gets as many as exp(entropy), rounded up."""

    width: Annotated[
        int, Field(ge=1, le=upper_bound("width"), title="Nodes grown per level (beam width)"), SliderRange(16, 1)
    ] = 4
    """Nodes of one level that may grow children: the best by cumulative log-probability."""

    min_log_prob: Annotated[
        float,
        Field(ge=-50.0, le=0.0, title="Give up branches below (log-probability, nats)"),
        SliderRange(0.0, 0.1),
    ] = -2.0
    """Nats. Branches whose cumulative log-probability falls below this are not followed."""

    branching: Annotated[
        tuple[Children, ...], LISTED, Field(title="Children by level (branching factors)")
    ] = (3, 2, 1, 1, 1)
    """Children of every node by level, for the fixed rule."""

    rank_acceptance: Annotated[
        tuple[Share, ...], LISTED, Field(title="Acceptance by rank")
    ] = (0.891, 0.082, 0.017, 0.004)
    """How often the target takes the draft's best guess, its second, and so on: what sequoia's shape is made for."""

    temperature: Annotated[float, Field(ge=0.0, le=5.0, title="Temperature"), SliderRange(1.5, 0.05)] = 0.0
    """0 always takes the target's most likely token; above it, tokens are drawn from its distribution."""

    top_p: Annotated[float, Field(ge=0.01, le=1.0, title="Top-p"), SliderRange(1.0, 0.05)] = 1.0
    """Draw from the most likely tokens that together reach this probability; 1 draws from all."""

    top_k: Annotated[int, Field(ge=0, le=1000, title="Top-k"), SliderRange(100, 1)] = 0
    """Draw from that many of the most likely tokens; 0 draws from all."""

    seed: Annotated[int, Field(ge=0, le=2**31 - 1, title="Seed")] = 0
    """Of whatever is drawn: same seed, same answer, with a draft or without."""

    children: Annotated[Literal["best", "drawn"], Field(title="Which guesses (top-k or sampled)")] = "best"
    """Guesses are the draft's best, or drawn from it without replacement (only with a temperature)."""

    ngram: Annotated[int, Field(ge=1, le=8, title="Tokens to look up (n-gram)"), SliderRange(5, 1)] = 3
    """Last tokens that prompt-lookup looks for in the text before, at most."""

    @property
    def keeps_tokens(self) -> bool:
        """Whether the answer has the target's own tokens for a given seed, not only its distribution.

        Guesses drawn from the draft model keep the distribution alone; other drafters draw none.
        """
        return self.children == "best" or self.drafter in ("prompt-lookup", "none")

    @property
    def max_expanded_nodes(self) -> int:
        """Nodes of one tree that the draft may expand: a beam's levels, or a whole static shape."""
        return max(self.depth * self.width, self.nodes)

    def target_slots(self, length: int) -> int:
        """Count slots of the target's KV cache for ``length`` tokens of prompt and answer and the largest tree."""
        return length + self.nodes + 1

    def draft_slots(self, length: int) -> int:
        """Count slots of a draft's KV cache, which holds every expanded node until the target has verified."""
        return self.target_slots(length) + self.max_expanded_nodes

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.children == "drawn" and self.temperature == 0:
            raise ValueError("drawn children need a temperature above 0")
        if self.children == "drawn" and not RULE_CHOICES[self.rule].drawable:
            drawable = (name for name, choice in RULE_CHOICES.items() if choice.drawable)
            raise ValueError(
                f"the {self.rule} rule drops guesses for what they are, which bends the distribution of drawn ones:"
                f" use {' or '.join(drawable)}, or best children"
            )
        return self


def eagle2_tree(depth: int, top_k: int, total: int) -> dict[str, Any]:
    """Return the options of the topk rule that grow what EAGLE-2, MSD and ViSpec call by three numbers.

    Their depth counts the passes after the root's, each of which makes one more level; their total counts the root.
    """
    return {"rule": "topk", "depth": depth + 1, "width": top_k, "nodes": total - 1}


def options_read(drafter: str, rule: str, temperature: float) -> frozenset[str]:
    """Return the names of the options that decoding with these three reads: a change of any other changes nothing.

    A drafter or rule that is not known here reads none of its own.
    """
    read = {"drafter", "max_new_tokens", "temperature"}
    if drafter in DRAFTER_CHOICES:
        read.update(DRAFTER_CHOICES[drafter].options)
    known = RULE_CHOICES.get(rule) if "rule" in read else None
    if known:
        read.update(known.options)
    if temperature > 0:
        read.update(("top_p", "top_k", "seed"))
    if temperature <= 0 or not (known and known.drawable):
        read.discard("children")  # they can only be the best
    return frozenset(read)


def short(value: object) -> str:
    """Return a value for a message: its ``repr`` in one line, cut to 60 characters before it becomes long."""
    return _Short().repr(value).replace("\n", " ")[:60]


def one_line(error: ValidationError, where: str = "") -> str:
    """Format a validation error as one readable line: field, value and bound of its first three complaints.

    Args:
        where: prefix of each field, such as ``speculative.``.
    """
    items = error.errors(include_url=False, include_context=False)
    parts = []
    for item in items[:3]:
        field = where + ".".join(str(step)[:60] for step in item["loc"]) or "value"
        shown = item["type"] != "missing" and not isinstance(item["input"], dict)
        given = f" = {short(item['input'])}" if shown else ""
        message = item["msg"].removeprefix("Value error, ")
        parts.append(f"{_cut(field.rstrip('.'), 120)}{given}: {message[:1].lower()}{_cut(message[1:], 200)}")
    more = len(items) - 3
    line = _cut("; ".join(parts), 360) + (f"; and {more} more" if more > 0 else "")
    return "".join(character if character.isprintable() else " " for character in line)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


class _Short(Repr):
    """Python's own abbreviating ``repr``, with room for a text, and for integers that ``repr`` itself refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 60

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() <= 128 else f"an integer of {x.bit_length()} bits"
