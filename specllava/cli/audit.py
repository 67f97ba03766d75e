"""The command ``python -m specllava audit``."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, cast

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specllava.cli.answer_file import Answer, check_same_questions, read_answers
from specllava.cli.options import (
    announce_loading,
    check_outputs,
    hide_progress_bars,
    print_line,
    print_notice,
    write_json,
)
from specllava.findings.audit import FRACTION_BITS, AuditResult, Choice, Difference, Precision, first_difference

if TYPE_CHECKING:
    from specllava.pair import Pair
    from specllava.runtime.prompt import Prompt

HEADS: Final = ("row", "token", "A", "B", "target's best", "second", "margin", "ulps", "verdict")
END: Final = "(end)"
PLAIN_IS_WRONG: Final = "A is wrong too: are checkpoint and prompts those of the run, greedy and without penalties?"


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Compare answers of any engine without and with speculation: equal, a near-tie that rounding decides, or a bug.

    The exit code is 0 without bugs, 1 with one, 2 where nothing could be judged (docs/audit.md).
    """

    target: str
    """The model that answered: an id of the hub, or a directory. It is loaded in float32."""

    a: Path
    """Greedy answers without speculation, a JSON object a line."""

    b: Path
    """Answers to the same questions with speculation, in the same order."""

    images: Path | None = None
    """Directory that the rows' image paths begin in; by default that of each file."""

    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """What the engine computed in; auto is what the checkpoint is stored in."""

    ulps: float = 4.0
    """Units in the last place, of that precision at the best logit, below which a difference is a near-tie; never less
    than a margin of 0.0001."""

    device: str = "auto"
    """cpu, cuda or cuda:N; auto takes the GPU if there is one."""

    device_map: bool = False
    """Spread the target over all GPUs and the machine's memory."""

    json: Path | None = None
    """Write a verdict per row to this file."""

    error_code: ClassVar[int] = 2

    def run(self, console: Console) -> int:
        """Print the differences and the counts of verdicts; return the exit code."""
        check_outputs(json=self.json)
        if not 0 <= self.ulps < math.inf:
            raise ValueError(f"--ulps {self.ulps} is no number of ulps: 4 are usual")
        a, b = (read_answers(path, self.images) for path in (self.a, self.b))
        check_same_questions(a, b)
        precision = self._engine_precision()
        parted = [number for number, pair in enumerate(zip(a, b, strict=True), start=1) if not _same(*pair)]
        found: dict[int, Difference] = {}
        if parted:
            target = self._load()
            for number in parted:
                rows = a[number - 1], b[number - 1]
                if difference := _difference(target, number, *rows, precision, self.ulps):
                    found[number] = difference
        result = AuditResult(self.target, precision, self.ulps, len(a), found)
        if found:
            console.print(_table(found))
        equal, ties, bugs = result.counts.values()
        limit = f"at most {self.ulps:g} ulps of {precision}"
        print_line(console, f"{len(a)} pairs: {equal} equal, {ties} near-ties ({limit}), {bugs} bugs")
        if any("A" in one.wrong for one in found.values()):
            print_line(console, PLAIN_IS_WRONG)
        write_json(self.json, result.as_json())
        return 1 if bugs else 0

    def _load(self) -> Pair:
        announce_loading(self.target)
        from specllava.pair import Pair

        hide_progress_bars()
        where: dict[str, Any] = {"device": self.device, "device_map": self.device_map}
        return Pair.load(self.target, dtype="float32", tell=print_notice, **where)

    def _engine_precision(self) -> Precision:
        """Return the engine's precision.

        Raises:
            ValueError: the checkpoint names none that is known.
        """
        from specllava.models.checkpoints.checkpoint import Checkpoint

        if self.precision != "auto":
            return self.precision
        config = Checkpoint.at(self.target).config()
        stored = str(config.dtype or config.get_text_config().dtype).removeprefix("torch.")
        if stored not in FRACTION_BITS:
            raise ValueError(f"{self.target} is stored in {stored}: name the engine's --precision")
        return cast("Precision", stored)


def _same(one: Answer, two: Answer) -> bool:
    """Check whether two answers are the same as written, which needs no target."""
    by_ids = None not in (one.ids, two.ids)
    return one.ids == two.ids if by_ids else one.text == two.text


def _difference(
    pair: Pair, number: int, one: Answer, two: Answer, precision: Precision, allowed: float
) -> Difference | None:
    """Return the first difference of two answers, judged by the target; ``None`` if they are equal.

    Raises:
        ValueError: ids that the target does not have, or a prompt that it cannot read.
    """
    tokenizer = pair.processor.tokenizer
    if one.ids is not None and two.ids is not None:
        a, b = (_without_end(ids, {*pair.eos_token_ids, tokenizer.pad_token_id}) for ids in (one.ids, two.ids))
    else:
        a, b = (tokenizer.encode(answer.text, add_special_tokens=False) for answer in (one, two))
    position = first_difference(a, b)
    if position is None:
        return None
    most = pair.target.config.get_text_config().vocab_size
    if max((*a, *b, *(one.prompt_ids or ()))) >= most:
        raise ValueError(f"row {number} has token id {max((*a, *b, *(one.prompt_ids or ())))}: the target has {most}")
    try:
        logits = _next_logits(pair, one, a[:position])
    except ValueError as error:
        raise ValueError(f"row {number}: {error}") from error
    if not all(map(math.isfinite, logits)):
        raise ValueError(f"row {number}: the target's logits are not finite numbers")
    first, second = sorted(range(len(logits)), key=logits.__getitem__)[: -3 : -1]
    ends = max((logits[token] for token in pair.eos_token_ids), default=-math.inf)

    def choice(token: int | None) -> Choice:
        if token is None:
            return Choice(None, END, ends)
        return Choice(token, pair.detokenizer.text_of(token), logits[token])

    chosen = [choice(ids[position] if position < len(ids) else None) for ids in (a, b)]
    return Difference(position, (choice(first), choice(second)), (chosen[0], chosen[1]), precision, allowed)


def _without_end(ids: Sequence[int], ends: Collection[int | None]) -> Sequence[int]:
    """Return an answer without the tokens that end or pad it, which only some engines give."""
    length = len(ids)
    while length and ids[length - 1] in ends:
        length -= 1
    return ids[:length]


def _next_logits(pair: Pair, one: Answer, begun: Sequence[int]) -> list[float]:
    """Return the target's logits ``[vocab]`` after a prompt and the beginning of its answer.

    Raises:
        ValueError: a prompt that the target cannot read, or no room for it.
    """
    from specllava.runtime.prompt import with_prefix
    from specllava.runtime.prompt_builder import check_room
    from specllava.runtime.scoring import next_logits

    prompt = _prompt(pair, one)
    check_room(pair.context, prompt.length, len(begun) + 1)
    logits: list[float] = next_logits(pair.target, with_prefix(prompt, begun)).tolist()
    return logits


def _prompt(pair: Pair, one: Answer) -> Prompt:
    """Return the prompt of a row: its question in the target's chat template, or its ids.

    Raises:
        ValueError: pictures that do not fill the image slots of the ids.
    """
    import torch

    from specllava.runtime.vision import slots_of

    prompt = pair.prompt(one.images, one.prompt or "?")
    if one.prompt_ids is None:
        return prompt
    ids = torch.tensor([one.prompt_ids], device=prompt.input_ids.device)
    given, needed = (int(slots_of(pair.target.config, row).sum()) for row in (ids, prompt.input_ids))
    if given != needed:
        raise ValueError(f"{given} image slots in the prompt's ids, and {needed} for its {len(one.images)} images")
    return replace(prompt, input_ids=ids)


def _table(found: dict[int, Difference]) -> Table:
    table = Table(box=SIMPLE, padding=0)
    for head in HEADS:
        table.add_column(head, overflow="fold")
    for number, one in found.items():
        table.add_row(str(number), *(Text(cell) for cell in _cells(one)))
    return table


def _cells(one: Difference) -> Iterator[str]:
    yield str(one.position)
    for choice in (*one.chosen, *one.best):
        yield f"{choice.text if choice.token is None else repr(choice.text)} {choice.logit:.6g}"
    yield f"{one.margin:.3g}"
    yield f"{max(one.lags):.3g}"
    yield f"bug in {' and '.join(one.wrong)}" if one.wrong else one.verdict
