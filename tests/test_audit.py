"""``python -m specllava audit``: errors planted in one of two files of answers are named, and bad files refused."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import checkpoints

from specllava.cli.main import main
from specllava.core.config import DecodingConfig
from specllava.findings.audit import Choice, Difference, first_difference, ulp
from specllava.pair import Pair
from specllava.runtime.cache import BranchCache
from specllava.runtime.passes import AttentionMasks

QUESTIONS = ("What is this?", "Describe the picture in detail.", "How many cats are there?", "Where is it?")
TWIN, NEAR = 7, 1 - 2**-10  # a token whose logit is that of another one, but for a part in 1024
HEAD = "language_model.lm_head.weight"
Row = dict[str, Any]


@dataclass(frozen=True)
class Made:
    """A target on disk with its answers.

    Args:
        often: the token that they have most often; :data:`TWIN` is the target's second best wherever it is the best.
    """

    folder: Path
    pair: Pair
    rows: list[Row]
    often: int

    @property
    def target(self) -> str:
        return str(self.folder / "target")


def answers(pair: Pair, folder: Path, drafter: str) -> list[Row]:
    """Answers as rows, with pictures and the whole prompt's ids."""
    config = DecodingConfig(
        drafter=drafter, rule="fixed", depth=3, width=2, nodes=10, min_log_prob=-50.0, max_new_tokens=24
    )
    rows = []
    for number, question in enumerate(QUESTIONS):
        name = f"{number}.png"
        checkpoints.picture(number).save(folder / name)
        trace = pair.generate(folder / name, question, config, record=False)
        ids = pair.prompt(folder / name, question).input_ids[0].tolist()
        rows.append({"prompt": question, "image": name, "ids": ids, "token_ids": list(trace.token_ids)})
    return rows


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("audit")
    first = checkpoints.write_llava(folder / "first")
    rows = answers(Pair.load(first, device="cpu", dtype="float32"), folder, "none")
    often = Counter(token for row in rows for token in row["token_ids"]).most_common(1)[0][0]
    weights = checkpoints.weights_of(first)
    weights[HEAD][TWIN] = weights[HEAD][often] * NEAR
    target = checkpoints.write_llava(folder / "target", parts=weights)
    near = checkpoints.write_llava(folder / "draft", seed=1, parts=checkpoints.noisy(weights, 0.01))
    pair = Pair.load(target, near, device="cpu", dtype="float32")
    return Made(folder, pair, answers(pair, folder, "none"), often)


@pytest.fixture
def audit(made: Made, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Audit rows against the plain ones: exit code and JSON."""

    def run(b: list[Row], a: list[Row] | None = None, *options: str) -> tuple[int, dict[str, Any]]:
        out = made.folder / "out.json"
        out.unlink(missing_ok=True)
        files = [write(made.folder / f"{name}.jsonl", rows) for name, rows in (("a", a or made.rows), ("b", b))]
        command = ["audit", "--target", made.target, "--a", files[0], "--b", files[1], "--json", str(out)]
        code = main([*command, *options, "--device", "cpu"])
        return code, json.loads(out.read_text())

    return run


def write(file: Path, rows: list[Row]) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(file)


def flipped(made: Made) -> tuple[int, int, list[Row]]:
    """Row, position and answers in which the target's second best token is taken there."""
    row = next(number for number, one in enumerate(made.rows) if made.often in one["token_ids"])
    ids = made.rows[row]["token_ids"]
    at = ids.index(made.often)
    rows = [dict(one) for one in made.rows]
    rows[row]["token_ids"] = [*ids[:at], TWIN, *ids[at + 1 :]]
    return row, at, rows


def test_speculation_without_errors_is_equal(made: Made, audit, capsys) -> None:
    fast = answers(made.pair, made.folder, "model")
    code, result = audit(fast, None, "--precision", "float32")
    assert code == 0 and result["counts"] == {"equal": len(QUESTIONS), "near-tie": 0, "bug": 0}
    assert "4 pairs: 4 equal, 0 near-ties" in capsys.readouterr().out


def test_a_wrong_mask_is_a_bug_of_b(made: Made, audit, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """Guesses see their siblings."""
    right = AttentionMasks.of

    def wrong(self, visible, positions, cached):
        nodes, columns = visible.shape
        return right(self, np.tri(nodes, columns, columns - nodes, dtype=bool), positions, cached)

    with monkeypatch.context() as planted:
        planted.setattr(AttentionMasks, "of", wrong)
        fast = answers(made.pair, made.folder, "model")
    check_bug(made, fast, audit, capsys)


def test_a_stale_cache_column_is_a_bug_of_b(made: Made, audit, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """The columns after the context are kept in place of those of the accepted branch."""
    right = BranchCache.keep
    with monkeypatch.context() as planted:
        planted.setattr(BranchCache, "keep", lambda self, base, offsets: right(self, base, range(len(offsets))))
        fast = answers(made.pair, made.folder, "model")
    check_bug(made, fast, audit, capsys)


def check_bug(made: Made, fast: list[Row], audit, capsys) -> None:
    code, result = audit(fast, None, "--precision", "float32")
    assert code == 1 and result["counts"]["bug"] > 0 and result["counts"]["near-tie"] == 0
    for row, plain, other in zip(result["rows"], made.rows, fast, strict=True):
        at = first_difference(plain["token_ids"], other["token_ids"])
        assert row["verdict"] == ("equal" if at is None else "bug") and row.get("position") == at
        if at is not None:
            assert row["wrong"] == ["B"] and row["a"]["ulps"] == 0 < row["b"]["ulps"]
    shown = capsys.readouterr().out
    assert "bug in B" in shown and "A is wrong too" not in shown


def test_a_flipped_near_tie_is_one_in_the_precision_that_cannot_tell_its_logits_apart(made: Made, audit) -> None:
    row, at, fast = flipped(made)
    code, result = audit(fast, None, "--precision", "bfloat16")
    found = result["rows"][row]
    assert code == 0 and result["counts"] == {"equal": len(QUESTIONS) - 1, "near-tie": 1, "bug": 0}
    assert found["position"] == at and [one["token"] for one in found["best"]] == [made.often, TWIN]
    assert found["margin"] == pytest.approx(found["best"][0]["logit"] / 1024, rel=0.3)
    assert found["a"]["ulps"] == 0 < found["b"]["ulps"] < 1
    assert found["b"]["ulps"] == found["margin"] / ulp(found["best"][0]["logit"], "bfloat16")
    code, result = audit(fast, None, "--precision", "float32")
    assert code == 1 and result["rows"][row]["wrong"] == ["B"]
    code, result = audit(fast, None, "--precision", "bfloat16", "--ulps", "0.01")
    assert code == 1


def test_the_side_that_is_wrong_is_named(made: Made, audit, capsys) -> None:
    """Also where plain decoding is: then checkpoint or prompt may be others than those of the run."""
    _, _, fast = flipped(made)
    code, _ = audit(made.rows, fast, "--precision", "float32")
    shown = capsys.readouterr().out
    assert code == 1 and "bug in A" in shown and "A is wrong too" in shown


def as_vllm(row: Row) -> Row:
    output = {"index": 0, "text": "…", "token_ids": row["token_ids"], "finish_reason": "length"}
    prompt = {"prompt": f"USER: <image>\n{row['prompt']} ASSISTANT:", "prompt_token_ids": row["ids"]}
    return {"request_id": "0", "image": row["image"], **prompt, "outputs": [output], "finished": True}


def as_sglang(row: Row) -> Row:
    answer = {"text": "…", "output_ids": row["token_ids"], "meta_info": {"completion_tokens": 24}}
    return {"prompt": row["prompt"], "image": row["image"], **answer}


def as_generate(row: Row) -> Row:
    """``sequences.tolist()`` and ``input_ids.tolist()``, padded as in a batch."""
    whole = [*row["ids"], *row["token_ids"], checkpoints.PAD_ID, checkpoints.PAD_ID]
    return {"image": [row["image"]], "input_ids": [row["ids"]], "sequences": [whole]}


@pytest.mark.parametrize("form", [as_vllm, as_sglang, as_generate])
def test_formats_of_engines_give_the_same_verdicts(made: Made, audit, form: Callable[[Row], Row]) -> None:
    row, at, fast = flipped(made)
    code, result = audit([form(one) for one in fast], [form(one) for one in made.rows], "--precision", "bfloat16")
    assert code == 0 and result["rows"][row]["position"] == at and result["counts"]["near-tie"] == 1
    assert [one["token"] for one in result["rows"][row]["best"]] == [made.often, TWIN]


def test_texts_are_compared_by_the_targets_tokens(made: Made, audit) -> None:
    a = [{"prompt": "What?", "text": "There are two cats"}, {"prompt": "Why?", "text": "It is on the table."}]
    b = [{"text": "There are two dogs"}, {"text": "It is on the table."}]
    code, result = audit(b, a)
    tokenizer = made.pair.processor.tokenizer
    ids = [tokenizer.encode(rows[0]["text"], add_special_tokens=False) for rows in (a, b)]
    assert code == 1 and [one["verdict"] for one in result["rows"]] == ["bug", "equal"]
    assert result["rows"][0]["position"] == first_difference(*ids)


def test_equal_files_need_no_target_in_memory(audit, monkeypatch: pytest.MonkeyPatch, made: Made) -> None:
    monkeypatch.setattr(Pair, "load", None)
    assert audit(made.rows)[0] == 0


def test_an_answer_that_ends_is_judged_by_its_end(made: Made, audit) -> None:
    """Ends that only one engine writes are no difference; an answer that is cut is one."""
    eos = next(iter(made.pair.eos_token_ids))
    ended = [row | {"token_ids": [*row["token_ids"], eos]} for row in made.rows]
    assert audit(ended)[0] == 0
    row = max(range(len(QUESTIONS)), key=lambda number: len(made.rows[number]["token_ids"]))
    cut = [dict(one) for one in made.rows]
    cut[row]["token_ids"] = cut[row]["token_ids"][:5]
    code, result = audit(cut, None, "--precision", "float32")
    found = result["rows"][row]
    assert code == 1 and found["position"] == 5 and found["b"]["token"] is None and found["wrong"] == ["B"]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "b.jsonl, row 1: not JSON"),
        ("7", "row 1: not a JSON object"),
        ('{"prompt": 7, "text": "a"}', "prompt that is no text"),
        ('{"prompt": "What?"}', 'without an answer: give "token_ids"'),
        ('{"token_ids": [1, -1]}', "with '-1' in token_ids: a token's id is a number from 0"),
        ('{"token_ids": "1 2"}', "token_ids that are no list of token ids"),
        ('{"outputs": []}', 'with "outputs" that are no list of one answer'),
        ('{"input_ids": [1], "sequences": [2, 3]}', 'do not begin with its "input_ids"'),
        ('{"text": "a", "image": "none.png"}', "with a missing image"),
        ('{"text": "a", "image": "../a.png"}', "leads out of the images directory"),
        ('{"prompt": "Why?", "text": "a"}', "A and B have different prompts in row 1"),
        ('{"text": "a"}\n{"text": "b"}', "A has 1 answers and B 2"),
        ('{"output_ids": [99999]}', "row 1 has token id 99999: the target has 448"),
        ('{"text": "a"}', "row 1 has token ids in one file and text in the other"),
        ("", "b.jsonl has no answer"),
    ],
)
def test_bad_rows_are_refused_in_one_line(made: Made, capsys, line: str, complaint: str) -> None:
    a = write(made.folder / "a.jsonl", [{"prompt": "What?", "token_ids": [5, 6]}])
    (made.folder / "b.jsonl").write_text(line, encoding="utf-8")
    check_refused(made, capsys, complaint, "--a", a, "--b", str(made.folder / "b.jsonl"))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--a", "none.jsonl"), "no file of answers at none.jsonl"),
        (("--images", "nowhere"), "no images directory at nowhere"),
        (("--ulps", "-1"), "--ulps -1.0 is no number of ulps"),
        (("--json", "nowhere/a.json"), "there is no directory nowhere"),
        (("--target", "nowhere"), "no model at nowhere"),
        ((), "5 image slots"),
    ],
)
def test_what_cannot_be_judged_is_refused_in_one_line(made: Made, capsys, options, complaint: str) -> None:
    slots = [checkpoints.IMAGE_ID] * 5
    a = write(made.folder / "a.jsonl", [{"prompt_token_ids": [1, *slots, 5], "token_ids": [5, 6]}])
    b = write(made.folder / "b.jsonl", [{"token_ids": [6, 6]}])
    check_refused(made, capsys, complaint, "--a", a, "--b", b, *options)


def check_refused(made: Made, capsys, complaint: str, *options: str) -> None:
    """The exit code is 2: 1 would be a verdict."""
    assert main(["audit", "--target", made.target, "--device", "cpu", *options]) == 2
    lines = [one for one in capsys.readouterr().err.splitlines() if one.startswith("specllava: ")]
    assert len(lines) == 1 and complaint in lines[0]


def test_a_question_that_is_missing_is_refused(made: Made, capsys) -> None:
    files = [write(made.folder / f"{name}.jsonl", [{"token_ids": [5]}]) for name in "ab"]
    check_refused(made, capsys, "row 1 of A has no question", "--a", files[0], "--b", files[1])


@pytest.mark.parametrize(
    ("value", "precision", "expected"),
    [(1.0, "float32", 2**-23), (-12.5, "bfloat16", 2**-4), (16.0, "bfloat16", 2**-3), (15.99, "float16", 2**-7),
     (0.0, "bfloat16", 2**-7)],
)  # fmt: skip
def test_an_ulp_is_the_distance_of_neighbouring_numbers(value, precision, expected: float) -> None:
    assert ulp(value, precision) == expected


def test_a_token_that_is_none_of_the_two_best_is_judged_by_its_own_distance() -> None:
    best = Choice(1, "a", 8.0), Choice(2, "b", 7.99)
    near, far = Choice(3, "c", 7.8), Choice(4, "d", 5.0)
    assert Difference(0, best, (best[0], near), "bfloat16", 4.0).verdict == "near-tie"
    assert Difference(0, best, (near, far), "bfloat16", 4.0).wrong == ("B",)
