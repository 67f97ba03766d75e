"""Acceptance by vLLM's names, ours and others': what is told equals counts made anew, odd logs are refused."""

from __future__ import annotations

import json
import random
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from support.browser import SavedPages, script_page
from support.visual_traces import synthetic_race

from specllava.cli.main import main
from specllava.core.acceptance import Acceptance, DraftedStep, pool_acceptance, trace_acceptance
from specllava.findings.serving_log import MAX_FILE_BYTES, read_log
from visual.player.frames import recorded_frames

# vLLM's documentation, docs/features/speculative_decoding/acceptance_metrics.md.
VLLM = {
    "mean_acceptance_length": 1.2325581395348837, "draft_acceptance_rate": 0.07751937984496124,
    "acceptance_histogram": [39, 1, 0, 3], "acceptance_histogram_by_draft_length": {"3": [39, 1, 0, 3]},
    "num_spec_steps": 43, "num_accepted_draft_tokens": 10, "num_draft_tokens": 129, "num_spec_tokens": 3,
}  # fmt: skip
# A response of SGLang, from its pull request 33518.
SGLANG = {
    "spec_accept_rate": 0.2930232558139535, "spec_accept_length": 2.4651162790697674, "spec_num_correct_drafts": 63,
    "spec_num_proposed_drafts": 215, "spec_verify_ct": 43, "spec_correct_drafts_histogram": [11, 14, 11, 4, 0, 3],
}  # fmt: skip
OLDER = {  # the same by the names of SGLang 0.5.9
    "completion_tokens": 106, "spec_verify_ct": 43, "spec_accept_token_num": 63, "spec_draft_token_num": 215,
    "spec_accept_histogram": [11, 14, 11, 4, 0, 3],
}  # fmt: skip


def random_steps(rng: random.Random) -> list[tuple[int, int]]:
    drafted = [rng.randint(0, 7) for _ in range(rng.randint(1, 60))]
    return [(guesses, rng.randint(0, guesses)) for guesses in drafted]


def detailed(steps: list[tuple[int, int]], k: int = 7) -> dict[str, Any]:
    """What vLLM gives at its level detailed, by its documentation's sentences."""
    drafted, accepted = [d for d, _ in steps], [a for _, a in steps]
    counts = Counter(accepted)
    return {
        "mean_acceptance_length": 1 + sum(accepted) / len(steps),
        "draft_acceptance_rate": sum(accepted) / max(1, sum(drafted)),
        "acceptance_histogram": [counts[j] for j in range(k + 1)], "num_spec_steps": len(steps),
        "num_accepted_draft_tokens": sum(accepted), "num_draft_tokens": sum(drafted), "num_spec_tokens": k,
        "per_step_accepted": accepted, "per_step_drafted": drafted,
    }  # fmt: skip


def vllm(counts: object) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "choices": [{"index": 0}], "usage": {}, "metrics": {"speculative_decoding": counts}}


def write(path: Path, responses: list[Any]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in responses), encoding="utf-8")
    return path


def test_a_log_of_vllm_gives_back_its_own_figures(tmp_path: Path) -> None:
    for seed in range(40):
        rng = random.Random(seed)
        requests = [random_steps(rng) for _ in range(rng.randint(1, 5))]
        told = [detailed(steps) for steps in requests]
        log = read_log(write(tmp_path / "log.jsonl", [vllm(counts) for counts in told] + [vllm(None)]))
        assert log.silent == 1 and [list(one.steps) for one in log.requests] == requests
        for request, counts in zip(log.requests, told, strict=True):
            found = request.as_json(steps=True)
            assert found is not None
            shared = [name for name in found if name in counts and name != "acceptance_histogram"]
            assert len(shared) == 7 or not request.draft_tokens
            assert all(found[name] == pytest.approx(counts[name]) for name in shared if found[name] is not None)
            whole = [*found["acceptance_histogram"], *[0] * 8][:8]
            assert whole == counts["acceptance_histogram"]
        every = [step for steps in requests for step in steps]
        summary = {name: value for name, value in detailed(every).items() if not name.startswith("per_step")}
        assert read_log(write(tmp_path / "sum.jsonl", [vllm(summary)])).pooled.as_json() == log.pooled.as_json()
        for depth, share in enumerate(log.pooled.per_position, start=1):  # vLLM's, over all drafts
            assert share == pytest.approx(sum(accepted >= depth for _, accepted in every) / len(every))


@pytest.mark.parametrize(
    "response",
    [
        {"choices": [], "sglext": {"spec_tokens_details": SGLANG}},
        {"choices": [], "sglext": {"spec_tokens_details": [SGLANG]}},
        {"text": "a", "output_ids": [1], "meta_info": {"completion_tokens": 106, **SGLANG}},
        {"choices": [{"message": {}, "meta_info": SGLANG}]},
        {"meta_info": OLDER},
    ],
)
def test_a_response_of_sglang_is_read_wherever_it_holds_its_counts(response: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(json.dumps([response]))
    log = read_log(tmp_path / "one.json")
    assert log.pooled.mean_length == pytest.approx(SGLANG["spec_accept_length"])
    assert log.pooled.rate == pytest.approx(SGLANG["spec_accept_rate"])
    assert log.pooled.histogram == (11, 14, 11, 4, 0, 3) and not log.ordered


def test_a_documented_example_is_shown_with_what_it_cannot_hold(tmp_path: Path, capsys: Any) -> None:
    file = write(tmp_path / "vllm.jsonl", [vllm(VLLM)])
    assert main(["trace", "import", str(file), "--html", str(tmp_path / "page.html")]) == 0
    printed = capsys.readouterr().out
    assert "1 requests, 43 steps" in printed and "1.23 tokens a step" in printed and "8% of 129 guesses" in printed
    assert "hold no trees" in printed and "no order of steps" in printed and "9%, 7%, 7%" in printed
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "hold no trees" in page and page.count("<rect") == 4 and "<script" not in page


def test_a_ribbon_has_a_bar_for_every_step_and_the_page_is_well_formed(tmp_path: Path, capsys: Any) -> None:
    steps = [(3, 3), (3, 0), (2, 1)]
    file = write(tmp_path / "<b>log.jsonl", [{"per_step_accepted": [3, 0, 1], "per_step_drafted": [3, 3, 2]}])
    assert main(["trace", "import", str(file), "--html", str(tmp_path / "page.html")]) == 0
    assert "step by step: █▁▃" in capsys.readouterr().out
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<b>" not in page and page.count("<rect") == 2 * len(steps) + 4
    opened = list[str]()

    class Balanced(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            opened.extend([] if tag == "meta" else [tag])

        def handle_startendtag(self, tag: str, attrs: Any) -> None:
            assert tag == "rect"

        def handle_endtag(self, tag: str) -> None:
            assert opened.pop() == tag

    Balanced().feed(page)
    assert not opened


def test_given_costs_decide_whether_it_pays(tmp_path: Path, capsys: Any) -> None:
    file = write(tmp_path / "log.jsonl", [{"per_step_accepted": [2, 1, 3], "per_step_drafted": [4, 4, 4]}])
    for levels, level, pays in ((4, 1.0, True), (4, 9.0, False), (0, 9.0, True)):
        took = levels * level + 10 + (20 - 10) * 4 / 20
        speed = 3 * 10 / took
        given = ["--costs", "10", "20", str(level), *([] if levels else ["--levels", "0"])]
        assert main(["trace", "import", str(file), *given]) == 0
        printed = capsys.readouterr().out
        assert f"{'it pays' if pays else 'it does not pay'}: {speed:.2f} times as fast" in printed
        assert (speed > 1) == pays and f"break-even at {3 / speed:.2f} tokens a step" in printed


BAD: list[tuple[object, str]] = [
    ("{", "invalid JSON"),
    ("7", "7 is no JSON object"),
    ("{}", "has no acceptance counts in 1 responses"),
    (vllm({**VLLM, "num_spec_steps": 42}), "num_spec_steps is 42, and the counts of its steps give 43"),
    (vllm({**VLLM, "num_accepted_draft_tokens": 11}), "num_accepted_draft_tokens is 11"),
    (vllm({**VLLM, "num_draft_tokens": 9}), "10 guesses were accepted of 9"),
    (vllm({**VLLM, "num_draft_tokens": None}), "no num_draft_tokens"),
    (vllm({**VLLM, "acceptance_histogram": {"0": 39}}), "a list of numbers is expected"),
    (vllm({**VLLM, "acceptance_histogram": [39.5, 1, 0, 3]}), "acceptance_histogram has 39.5"),
    (vllm({**VLLM, "acceptance_histogram": [True] * 4}), "acceptance_histogram has True"),
    (vllm({**VLLM, "acceptance_histogram": [0] * 5000}), "has 5,000 entries: at most 1,025 are read"),
    ({"per_step_accepted": [1, 2], "per_step_drafted": [3]}, "has 2 steps and per_step_drafted 1"),
    ({"per_step_accepted": [1, 4], "per_step_drafted": [3, 3]}, "step 2 accepted 4 guesses of 3"),
    ({"per_step_accepted": [-1], "per_step_drafted": [3]}, "a whole number from 0 is expected"),
    ({"per_step_accepted": [9**9], "per_step_drafted": [9**9]}, "at most 1,024 are read"),
    ({"meta_info": {**SGLANG, "spec_correct_drafts_histogram": None}}, "spec_verify_ct is 43, and there is no"),
    ({"meta_info": {**SGLANG, "spec_verify_ct": 10**400}}, "spec_verify_ct has "),
    ("[" * 100_000, "invalid JSON"),
]


@pytest.mark.parametrize(("content", "words"), BAD, ids=range(len(BAD)))
def test_a_bad_log_is_refused_in_one_line(content: object, words: str, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    assert main(["trace", "import", str(file), "--json", str(tmp_path / "out.json")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("specllava: bad.jsonl") and words in line and len(line) < 400
    assert not (tmp_path / "out.json").exists()


def test_other_refusals(tmp_path: Path, capsys: Any) -> None:
    large = tmp_path / "large.jsonl"
    with large.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    good = write(tmp_path / "good.jsonl", [vllm(VLLM)])
    for arguments, words in (
        ([large], "more than the 33,554,432 that are read: split it"),
        ([tmp_path / "absent.json"], "no log at"),
        ([good, "--costs", "0", "1", "1"], "passes of the target take more than 0 ms"),
        ([good, "--levels", "-1"], "--levels is -1.0"),
    ):
        assert main(["trace", "import", *map(str, arguments)]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert words in line


def test_counts_of_our_own_runs_follow_from_their_steps_and_are_read_back(tmp_path: Path) -> None:
    for seed in range(6):
        trace = synthetic_race(seed)["speculative"]
        counted = trace_acceptance([trace])
        drafting = [step for step in trace.steps if step.tree.drafted]
        assert counted.num_steps == len(drafting)
        assert counted.accepted == sum(len(step.emitted_nodes) for step in drafting)
        assert counted.draft_tokens == sum(len(step.tree) - 1 for step in drafting)
        row = {"speculative": {"metrics": {"speculative_decoding": counted.as_json(steps=True)}}}
        assert read_log(write(tmp_path / "own.jsonl", [row])).requests == (counted,)
    assert trace_acceptance([synthetic_race(0)["target-only"]]).as_json() is None


def test_pooling_is_counting_all_steps_at_once() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        requests = [[DraftedStep(*step) for step in random_steps(rng)] for _ in range(rng.randint(1, 6))]
        whole = Acceptance.of(step for steps in requests for step in steps)
        assert pool_acceptance([Acceptance.of(steps) for steps in requests]).as_json() == whole.as_json()


def test_the_page_prices_imported_counts_as_the_command_does(
    saved_page: SavedPages, browser: Any, tmp_path: Path, capsys: Any
) -> None:
    file, out = write(tmp_path / "log.jsonl", [vllm(VLLM)]), tmp_path / "counts.json"
    costs = {"one": 10.0, "many": 15.0, "level": 0.1, "reading": 0.0, "drafting": 0.0, "tokens": 100}
    assert main(["trace", "import", str(file), "--json", str(out), "--costs", "10", "15", "0.1"]) == 0
    printed = capsys.readouterr().out
    with script_page(browser, "pays_math.js") as page:
        read = "([text, costs]) => script.priced(script.readFile(text).race.sets[0].steps, costs)"
        found = page.evaluate(read, [out.read_text(), costs])
    assert f"{found['speedup']:.2f} times as fast" in printed and f"at {found['breakEven']:.2f} tokens" in printed
    race = synthetic_race(1)
    tab = saved_page(recorded_frames(race["target-only"], race["speculative"]))
    tab.page.locator(".pays-curve").scroll_into_view_if_needed()
    tab.page.wait_for_selector(".pays-curve .main-svg")
    tab.page.click(".pays-bench summary")
    tab.page.fill(".pays-bench textarea", out.read_text())
    assert "1.2 tokens a pass" in tab.text(".pays-verdict") and "costs stay" in tab.text(".pays-note")
    before = tab.text(".pays-found")
    for broken in ({"levels": "<b>"}, {"metrics": {"speculative_decoding": {"num_spec_steps": 0}}}):
        tab.page.fill(".pays-bench textarea", json.dumps(json.loads(out.read_text()) | broken))
        assert tab.text(".pays-note").startswith("This report cannot be used: ") and tab.text(".pays-found") == before
