"""Acceptance counts of requests, as vLLM and SGLang put them into their responses. Trees are not among them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from specllava.core.acceptance import Acceptance, DraftedStep, pool_acceptance
from specllava.core.config import short
from specllava.core.trace import MAX_FILE_BYTES
from specllava.core.trace_fields import parse_json

LONGEST: Final = 1024  # guesses that a step may accept
LARGEST: Final = 2**53  # as far as a browser counts
# SGLang's names, the newest first: correct and proposed guesses, and steps by correct guesses.
CORRECT: Final = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num")
PROPOSED: Final = ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num")
HISTOGRAM: Final = ("spec_correct_drafts_histogram", "spec_accept_histogram")
EXPECTED: Final = (
    'a response of vLLM with "metrics.speculative_decoding", of SGLang with "meta_info" or'
    ' "sglext.spec_tokens_details", or {"per_step_accepted": [...], "per_step_drafted": [...]}'
)


@dataclass(frozen=True, slots=True)
class ServingLog:
    """Requests of a log.

    Args:
        requests: counts of each that drafted, in order.
        silent: number of responses without such counts.
    """

    requests: tuple[Acceptance, ...]
    silent: int

    @property
    def pooled(self) -> Acceptance:
        """Counts of all requests."""
        return pool_acceptance(self.requests)

    @property
    def ordered(self) -> bool:
        """Whether any request's steps are known one by one."""
        return any(request.steps for request in self.requests)


def read_log(file: Path) -> ServingLog:
    """Read a log: a response a line in a ``.jsonl``, else one response or a JSON list of them.

    Raises:
        ValueError: no such file, too large, not JSON, counts that contradict each other, or none; one line.
    """
    if not file.is_file():
        raise ValueError(f"no log at {file}: a .json or .jsonl is expected")
    if (size := file.stat().st_size) > MAX_FILE_BYTES:
        raise ValueError(f"{file.name} has {size:,} bytes, more than the {MAX_FILE_BYTES:,} that are read: split it")
    requests, silent = list[Acceptance](), 0
    for number, response in enumerate(_responses(file), start=1):
        try:
            found = [_acceptance(counts) for counts in _counts(response)]
        except ValueError as error:
            raise ValueError(f"{file.name}, response {number}: {error}") from error
        requests += [one for one in found if one.num_steps]
        silent += not any(one.num_steps for one in found)
    if not requests:
        raise ValueError(f"{file.name} has no acceptance counts in {silent} responses: each must be {EXPECTED}")
    return ServingLog(tuple(requests), silent)


def _responses(file: Path) -> Iterator[object]:
    """Yield the responses of a file; SGLang answers a batch with a list."""
    parts = file.read_bytes().splitlines() if file.suffix == ".jsonl" else [file.read_bytes()]
    for number, part in enumerate(parts, start=1):
        if not part.strip():
            continue
        try:
            document = parse_json(part)
        except ValueError as error:
            where = f", line {number}" if len(parts) > 1 else ""
            raise ValueError(f"{file.name}{where}: {error}") from error
        yield from document if isinstance(document, list) else [document]


def _counts(response: object) -> list[Mapping[str, Any]]:
    """Return the objects with the counts of a response: none, one, or one for each of SGLang's ``n`` answers."""
    if not isinstance(response, dict):
        raise ValueError(f"{short(response)} is no JSON object: {EXPECTED} is expected")
    inner = response.get("speculative")  # the lane of compare --json
    if isinstance(inner, dict):
        return _counts(inner)
    if "per_step_accepted" in response or "acceptance_histogram" in response:
        return [response]
    choices = response.get("choices")
    places = [response, *(one for one in choices if isinstance(one, dict))] if isinstance(choices, list) else [response]
    found: list[object] = [_part(response, "metrics", "speculative_decoding")]
    details = _part(response, "sglext", "spec_tokens_details")
    found += details if isinstance(details, list) else [details]
    found += [place.get("meta_info") for place in places]
    return [one for one in found if isinstance(one, dict) and ("num_spec_steps" in one or "spec_verify_ct" in one)]


def _part(response: Mapping[str, Any], outer: str, inner: str) -> object:
    part = response.get(outer)
    return part.get(inner) if isinstance(part, dict) else None


def _acceptance(counts: Mapping[str, Any]) -> Acceptance:
    """Read the counts of one request, by vLLM's names or SGLang's.

    Raises:
        ValueError: no number where one must be, or numbers that contradict each other.
    """
    ordered = counts.get("per_step_accepted") is not None
    found = Acceptance.of(_steps(counts)) if ordered else _summary(counts)
    names = ("num_spec_steps", "spec_verify_ct"), ("num_accepted_draft_tokens", *CORRECT)
    for (name, stated), counted in (
        (_number(counts, *names[0]), found.num_steps), (_number(counts, *names[1]), found.accepted),
        (_number(counts, "num_draft_tokens"), found.draft_tokens),
    ):  # fmt: skip
        if stated is not None and stated != counted:
            raise ValueError(f"{name} is {stated}, and the counts of its steps give {counted}")
    if found.accepted > found.draft_tokens:
        raise ValueError(f"{found.accepted} guesses were accepted of {found.draft_tokens}")
    return found


def _steps(counts: Mapping[str, Any]) -> Iterator[DraftedStep]:
    accepted, drafted = (_list(counts, name) for name in ("per_step_accepted", "per_step_drafted"))
    if len(accepted) != len(drafted):
        raise ValueError(f"per_step_accepted has {len(accepted)} steps and per_step_drafted {len(drafted)}")
    for number, (taken, guessed) in enumerate(zip(accepted, drafted, strict=True), start=1):
        if taken > guessed:
            raise ValueError(f"step {number} accepted {taken} guesses of {guessed}")
        if taken > LONGEST:
            raise ValueError(f"step {number} accepted {taken} guesses: at most {LONGEST:,} are read")
        yield DraftedStep(guessed, taken)


def _summary(counts: Mapping[str, Any]) -> Acceptance:
    """Read a histogram, of which the order of steps is not known."""
    name = next((name for name in ("acceptance_histogram", *HISTOGRAM) if counts.get(name)), None)
    passes, steps = _number(counts, "num_spec_steps", "spec_verify_ct")
    if name is None:
        if steps:
            raise ValueError(f"{passes} is {steps}, and there is no histogram of accepted guesses ({HISTOGRAM[0]})")
        return Acceptance((), 0)
    guesses, drafted = _number(counts, "num_draft_tokens", *PROPOSED)
    if drafted is None:
        raise ValueError(f"it has {name} and no {guesses}, the number of guesses")
    histogram = _list(counts, name)
    if len(histogram) > LONGEST + 1:
        raise ValueError(f"{name} has {len(histogram):,} entries: at most {LONGEST + 1:,} are read")
    while histogram and not histogram[-1]:
        histogram.pop()
    return Acceptance(tuple(histogram), drafted)


def _number(counts: Mapping[str, Any], *names: str) -> tuple[str, int | None]:
    """Return the count under the first name that is there, with that name."""
    name = next((name for name in names if counts.get(name) is not None), None)
    return (names[0], None) if name is None else (name, _whole(counts[name], name))


def _list(counts: Mapping[str, Any], name: str) -> list[int]:
    values = counts.get(name)
    if not isinstance(values, list):
        raise ValueError(f"{name} is {short(values)}: a list of numbers is expected")
    return [_whole(value, name) for value in values]


def _whole(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST:
        raise ValueError(f"{name} has {short(value)}: a whole number from 0 is expected")
    return value
