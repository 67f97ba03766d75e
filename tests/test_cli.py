"""Commands: what they print and write, and that bad input costs one line on stderr."""

import json

import pytest
from PIL import Image

from specllava.cli import main
from specllava.config import RULES
from specllava.toyworld.scene import HELD_OUT


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "scene.png"
    assert main(["toyworld", "render", "--seed", "5", "--split", "train", "--output", str(path)]) == 0
    return path


def test_render_prints_the_ground_truth(tmp_path, capsys):
    path = tmp_path / "scene.png"
    command = ["toyworld", "render", "--seed", "3", "--split", "held-out", "--output", str(path), "--size", "96"]
    assert main(command) == 0
    truth = json.loads(capsys.readouterr().out)
    assert Image.open(path).size == (96, 96)
    assert truth["count"] == len(truth["things"])
    assert sum((thing["colour"], thing["kind"]) in HELD_OUT for thing in truth["things"]) == 1


def test_generate_writes_ids_and_text(picture, tmp_path, capsys):
    out = tmp_path / "out.json"
    command = ["generate", "--image", str(picture), "--prompt", "Describe this image in detail.", "--json", str(out)]
    assert main(command) == 0
    lane = json.loads(out.read_text())["speculative"]
    assert lane["text"] and " ".join(lane["text"].split()) in " ".join(capsys.readouterr().out.split())
    assert main([*command, "--drafter", "none"]) == 0
    assert json.loads(out.read_text())["target_only"] == lane  # both lanes say the same


def test_compare_reports_both_lanes_and_writes_traces(picture, tmp_path, capsys):
    out, trace = tmp_path / "out.json", tmp_path / "trace.json"
    command = ["compare", "--image", str(picture), "--prompt", "How many objects are there?"]
    assert main([*command, "--json", str(out), "--trace", str(trace), "--preset", "toy"]) == 0
    report, printed = json.loads(out.read_text()), capsys.readouterr().out
    assert report["identical"] == (report["target_only"]["token_ids"] == report["speculative"]["token_ids"])
    assert "identical" in printed and "tau" in printed and "times as fast" in printed
    traces = json.loads(trace.read_text())
    ids = [traces["speculative"]["prefill"]["first_token"]]
    ids += [token for step in traces["speculative"]["steps"] for token in step["emitted"]]
    assert ids == report["speculative"]["token_ids"]


def test_bench_writes_a_row_for_every_lane(tmp_path):
    out = tmp_path / "bench.json"
    assert main(["bench", "--prompts", "3", "--max-new-tokens", "12", "--json", str(out)]) == 0
    lanes = json.loads(out.read_text())["lanes"]
    assert set(lanes) == {"target-only", *RULES, "prompt-lookup", "transformers"}
    for lane in lanes.values():
        assert {"tau", "ms_per_token", "speedup", "efficiency", "mismatches", "ties", "runs"} <= set(lane)
        assert lane["mismatches"] == 0 and lane["runs"] == 3
    assert lanes["target-only"]["tau"] == lanes["target-only"]["speedup"] == 1.0
    assert lanes["entropy"]["tau"] > 1.5
    assert len({lane["tokens"] for lane in lanes.values()}) == 1  # the same answers, counted the same way


def test_evaluate_counts_what_was_right(tmp_path):
    out = tmp_path / "quality.json"
    assert main(["toyworld", "evaluate", "--scenes", "6", "--json", str(out)]) == 0
    held_out, train = json.loads(out.read_text())["results"]
    assert held_out["place"] >= 0.98 and train["place"] >= 0.98  # it looks at the picture
    assert held_out["colour_and_kind"] >= 0.85 and held_out["held_out_combinations"] >= 0.8  # of six scenes
    assert held_out["counts"]["new_objects"] == 6 and "held_out_combinations" not in train


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["generate", "--image", "/none.png", "--prompt", "hi"], "/none.png"),
        (["generate", "--image", "IMAGE", "--prompt", "   "], "empty"),
        (["generate", "--image", "IMAGE", "--prompt", "hi", "--preset", "nope"], "toy"),
        (["generate", "--image", "IMAGE", "--prompt", "hi", "--depth", "0"], "depth"),
        (["generate", "--image", "IMAGE", "--prompt", "hi", "--max-new-tokens", "4000"], "1024"),
        (["generate", "--image", "IMAGE", "--prompt", "hi", "--device", "toaster"], "toaster"),
        (["generate", "--image", __file__, "--prompt", "hi"], "not a readable image"),
        (["toyworld", "render", "--split", "blue", "--output", "x.png"], "split"),
        (["toyworld", "render", "--output", "/none/x.png"], "/none"),
        (["bench", "--prompts", "0"], "--prompts"),
        (["bench", "--prompts", "1", "--lanes", "chain", "oak"], "there is no lane oak: choose among target-only, "),
        (["dance"], "dance"),
        ([], "specllava"),
    ],
)
def test_bad_input_costs_one_line_on_stderr(arguments, said, picture, capsys):
    arguments = [str(picture) if argument == "IMAGE" else argument for argument in arguments]
    try:
        code = main(arguments)
    except SystemExit as stop:
        code = stop.code
    errors = capsys.readouterr().err.strip()
    assert code not in (0, None)
    assert said in errors and "\n" not in errors
    assert "Traceback" not in errors
