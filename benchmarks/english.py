"""Speculation on real English: the pair smol answers free questions. By kind, by temperature, and where doubt is.

    python -m benchmarks.english --json benchmarks/results/english.json --picture docs/science-english.svg

Tokens are grouped by the word that they begin or continue, and by the text before them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch

from benchmarks.early import entropies
from benchmarks.shared.command import run_command, show_table
from benchmarks.shared.guessing import (
    Guessing,
    GuessingConfig,
    alone,
    cells,
    draw_rates,
    interval,
    over,
    rates,
    scored,
    speculate,
    write_rates,
)
from specllava.core.config import DecodingConfig
from specllava.core.metrics import drafted_tokens
from specllava.core.trace import DecodeTrace
from specllava.findings.bootstrap import pooled_rate
from specllava.pair import Pair
from specllava.runtime.prompt import Prompt
from specllava.runtime.scoring import draft_log_probs, score_draft, teacher_forced_log_probs
from specllava.smol.questions import FREE

TEMPERATURES: Final = (0.0, 0.4, 0.8)
SHAPES: Final = {"chain": "chain", "entropy tree": "entropy"}
FUNCTION: Final = """
a about above after all along also although am among an and another any are around as at be because been before
behind being below beside besides between both but by can could did do does down during each either every few
for from had has have he her here hers him his how i if in into is it its itself just like many may me might
more most much must my near neither no nor not of off on once one only onto or other our out over own she should
since so some such than that the their them then there these they this those though through to too toward
towards under until up upon us very was we were what when where which while who whom whose why will with within
without would you your
"""
FUNCTION_WORDS: Final = frozenset(FUNCTION.split())
CLASSES: Final = ("content word", "function word", "rest of a word", "punctuation", "end of the answer")
BEFORE: Final = ("a word", "a comma", "a full stop", "the question")
END: Final = (".", "!", "?")
DOUBTS: Final = ("target_entropy", "entropy", "kl", "agreement", "drafted")
Sums = Mapping[str, Mapping[str, float]]  # of each group its number of tokens, and of each of DOUBTS the sum


@dataclass(frozen=True, slots=True, kw_only=True)
class EnglishConfig(GuessingConfig):
    """Options of the experiment."""

    decoding: DecodingConfig = field(default_factory=lambda: DecodingConfig(max_new_tokens=64))
    prompts: int = 27
    preset: str = "smol"


def main(config: EnglishConfig) -> None:
    """Answer every question at every temperature by a chain and a tree, and draw where the models doubt."""
    pair = config.load_pair()
    answers: dict[tuple[float, str], list[Guessing]] = defaultdict(list)
    doubts: list[Sums] = []
    for asked in config.questions():
        prompt = pair.prompt(asked.image, asked.text)
        for temperature in TEMPERATURES:
            options = replace(config.decoding, temperature=temperature)
            own = alone(pair, prompt, options)
            for name, rule in SHAPES.items():
                trace, levels = speculate(pair, prompt, replace(options, rule=rule), own)
                answers[temperature, name].append(scored(pair, prompt, trace, levels))
                if not temperature and rule == "entropy":
                    doubts.append(doubts_of(pair, prompt, trace))
    found = {
        "temperatures": [
            {
                "temperature": temperature, "shape": name, **rates([[one] for one in done]),
                "tau_over_chain": over("tau", answers[temperature, "chain"], done),
            }
            for (temperature, name), done in answers.items()
        ],
        "kinds": [
            {"kind": kind, **rates([[one] for one in answers[0.0, "entropy tree"][number :: len(FREE)]])}
            for number, kind in enumerate(FREE)
        ],
        "tokens": doubt_rows(doubts),
    }  # fmt: skip
    show_rates(found)
    write_rates(config.json, pair, config, found)
    rows = {row["group"]: row for row in found["tokens"]}
    places = [name for name in (*CLASSES, *(f"after {one}" for one in BEFORE)) if name in rows]
    drawn = ("target_entropy", "entropy", "kl", "agreement")
    draw_rates(config.picture, {"smol": [rows[name] for name in places]}, drawn, places, "token", joined=False)


@torch.inference_mode()
def doubts_of(pair: Pair, prompt: Prompt, trace: DecodeTrace) -> Sums:
    """Add up both models' doubts over the tokens of an answer, by group."""
    assert pair.draft is not None
    answer, tokenizer = trace.token_ids, pair.processor.tokenizer
    target = teacher_forced_log_probs(pair.target, prompt, answer)
    draft = score_draft(draft_log_probs(pair.target, pair.draft, prompt, answer), target, answer)
    agreed = [one == token for one, token in zip(draft.guesses, answer, strict=True)]
    columns = (entropies(target), draft.entropies, draft.divergences, agreed, drafted_tokens(trace))
    sums: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    ended = tokenizer.all_special_ids
    pieces = ["" if one in ended else tokenizer.decode([one]) for one in answer]
    for groups, values in zip(groups_of(pieces), zip(*columns, strict=True), strict=True):
        for group in groups:
            sums[group]["count"] += 1
            for name, value in zip(DOUBTS, values, strict=True):
                sums[group][name] += value
    return sums


def groups_of(pieces: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield two groups of each token: by its word, and by the text before it.

    Args:
        pieces: text of each token; nothing of a token that ends the answer.
    """
    before = ""
    for piece, word in zip(pieces, _words(pieces), strict=True):
        if not piece:
            group = "end of the answer"
        elif not any(map(str.isalnum, piece)):
            group = "punctuation"
        elif before[-1:].isalnum() and piece[0].isalnum():
            group = "rest of a word"
        else:
            group = "function word" if word.lower() in FUNCTION_WORDS else "content word"
        stop = before.strip()[-1:]
        last = "a comma" if stop == "," else "a full stop" if stop in END else "a word"
        yield group, f"after {last if before else 'the question'}"
        before = piece


def _words(pieces: Sequence[str]) -> list[str]:
    """Return the word that each token begins: its letters, with those of the tokens that continue it."""
    words = []
    for number, piece in enumerate(pieces):
        word = piece.strip()
        for later in pieces[number + 1 :]:
            if not word or not word[-1].isalnum() or not later[:1].isalnum():
                break
            word += later
        words.append(word)
    return words


def doubt_rows(doubts: Sequence[Sums]) -> list[dict[str, Any]]:
    """Pool all answers: a row for each group, its share of the tokens and the means of :data:`DOUBTS`."""
    groups = sorted(set().union(*doubts))
    total = math.fsum(one[group]["count"] for one in doubts for group in one) / 2  # each token is in two groups
    rows = []
    for group in groups:
        parts = [one.get(group, {}) for one in doubts]
        count = math.fsum(part.get("count", 0) for part in parts)
        row: dict[str, Any] = {"group": group, "tokens": int(count), "share": round(count / total, 4)}
        for name in DOUBTS:
            row[name] = interval(pooled_rate([(part.get(name, 0), part.get("count", 0)) for part in parts]))
        rows.append(row)
    return rows


def show_rates(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Print a table of each part."""
    names = ("tau", "acceptance", "kl")
    heads = ("τ", "acceptance", "KL, nats")
    rows = [
        (f"{one['temperature']:g}", one["shape"], *cells(one, *names, "tau_over_chain"))
        for one in found["temperatures"]
    ]
    show_table(("temperature", "shape", *heads, "over chain"), rows)
    show_table(("kind", *heads), [(one["kind"], *cells(one, *names)) for one in found["kinds"]])
    rows = [(one["group"], str(one["tokens"]), *cells(one, *DOUBTS)) for one in found["tokens"]]
    show_table(("token", "number", *DOUBTS), rows)


if __name__ == "__main__":
    run_command(main, EnglishConfig)
