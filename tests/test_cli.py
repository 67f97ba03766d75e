"""Commands: what they print and write, and that bad input costs one line on stderr."""

import json
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console
from support import models

import specllava
from recipes.toy.__main__ import Render
from recipes.toy.__main__ import main as toy
from specllava.cli import commands, options
from specllava.cli import main as cli
from specllava.cli.main import main
from specllava.config import RULES, DecodingConfig
from specllava.pair import Pair

ROOT = Path(__file__).resolve().parents[1]


def errors_of(capsys):
    """Lines on stderr but for the one that says what is being loaded."""
    return [line for line in capsys.readouterr().err.splitlines() if not line.startswith("loading ")]


def program(text, *arguments):
    """A fresh interpreter's stdout."""
    command = [sys.executable, "-c", text, *map(str, arguments)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "scene.png"
    assert toy(["render", "--seed", "5", "--split", "train", "--output", str(path)]) == 0
    return path


@pytest.mark.parametrize(
    ("preset", "typed", "measured", "nodes"),
    [
        ("toy", (), None, 20),
        ("toy", (), 60, 60),
        ("toy", ("rule",), 40, 40),
        ("toy", ("nodes",), 60, 20),
        ("llava-1.5-7b-msd", (), 60, 58),
        ("llava-1.5-7b-msd", ("rule",), 60, 60),
    ],
)
def test_trees_are_as_large_as_the_device_affords_unless_typed_or_published(preset, typed, measured, nodes):
    pair = options.PairOptions(preset)
    assert options.with_defaults(DecodingConfig(), pair, frozenset(typed), measured).nodes == nodes
    timed = commands.Bench(pair=pair, typed=frozenset(typed)).config(replace(models.pair("mixed"), nodes=measured))
    assert timed.nodes == (measured if measured and "nodes" not in typed else 20)


def test_options_are_typed_by_their_names_and_not_by_values():
    arguments = ["generate", "--prompt", "nodes", "--rule=topk", "--max-new-tokens", "5", "depth"]
    assert options.typed_options(arguments) == {"rule", "max_new_tokens"}


def test_a_line_is_printed_as_it_is(capsys):
    line = "a :dog: in [red] " * 9
    options.print_line(Console(width=20), line)
    assert capsys.readouterr().out == line + "\n"


def test_guesses_that_nobody_draws_leave_answers_identical(picture, capsys):
    """Without a draft, prompt lookup guesses, whose tokens are the target's own."""
    command = ["compare", "--image", str(picture), "--prompt", "How many objects are there?", "--max-new-tokens", "8"]
    command += ["--target", str(ROOT / "assets" / "toy" / "target"), "--temperature", "0.5"]
    assert main([*command, "--rule", "fixed", "--children", "drawn"]) == 0
    assert "identical: " in capsys.readouterr().out


@pytest.mark.usefixtures("pair")
def test_generate_writes_ids_and_text(picture, tmp_path, capsys):
    out = tmp_path / "out.json"
    command = ["generate", "--image", str(picture), "--prompt", "Describe this.", "--json", str(out)]
    command += ["--max-new-tokens", "24"]
    assert main(command) == 0
    lane = json.loads(out.read_text())["speculative"]
    assert lane["text"] and " ".join(lane["text"].split()) in " ".join(capsys.readouterr().out.split())
    assert main([*command, "--drafter", "none"]) == 0
    assert json.loads(out.read_text())["target_only"] == lane  # both lanes say the same


def test_what_a_checkpoint_asks_for_is_printed_and_followed(picture, tmp_path, capsys):
    target = shutil.copytree(ROOT / "assets" / "toy" / "target", tmp_path / "target")
    fields = json.loads((target / "generation_config.json").read_text())
    command = ["generate", "--image", str(picture), "--prompt", "Describe this.", "--target", str(target)]
    command += ["--draft", str(ROOT / "assets" / "toy" / "draft"), "--max-new-tokens", "24"]
    (target / "generation_config.json").write_text(json.dumps(fields | {"repetition_penalty": 1.05, "min_p": 0.1}))
    said = []
    for drafter in ("model", "none"):
        assert main([*command, "--drafter", drafter]) == 0
        printed = capsys.readouterr()
        said.append(printed.out)
        assert "generation_config.json asks for repetition_penalty 1.05, min_p 0.1\n" in printed.err
    assert said[0] == said[1] != ""
    (target / "generation_config.json").write_text(json.dumps(fields | {"num_beams": 4}))
    assert main(command) != 0
    assert "generation_config.json asks for num_beams = 4" in errors_of(capsys)[-1]


@pytest.mark.usefixtures("pair")
def test_an_answer_that_is_only_printed_records_no_target_view(picture, tmp_path, monkeypatch):
    recorded, real = [], Pair.request

    def request(self, lane, caches=None, record=True):
        recorded.append(record)
        return real(self, lane, caches, record)

    monkeypatch.setattr(Pair, "request", request)
    command = ["generate", "--image", str(picture), "--prompt", "What is there?", "--max-new-tokens", "8"]
    out, trace = tmp_path / "out.json", tmp_path / "trace.json"
    assert main([*command, "--json", str(out)]) == 0
    assert main([*command, "--json", str(tmp_path / "again.json"), "--trace", str(trace)]) == 0
    assert recorded == [False, True]
    assert json.loads(out.read_text()) == json.loads((tmp_path / "again.json").read_text())
    assert all(step["target"] for step in json.loads(trace.read_text())["steps"])


@pytest.mark.usefixtures("pair")
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


def test_bench_writes_a_row_for_every_lane(tmp_path, capsys, monkeypatch):
    """A table that no terminal of 80 columns can hold would cut its numbers off."""
    monkeypatch.setenv("COLUMNS", "80")
    out = tmp_path / "bench.json"
    command = ["bench", "--prompts", "3", "--rounds", "1", "--max-new-tokens", "6", "--json", str(out)]
    assert main(command) == 0
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1  # what is being loaded; its progress bar went into pipes, too
    assert "…" not in printed.out and "wall" in printed.out
    report = json.loads(out.read_text())
    lanes = report["lanes"]
    assert set(lanes) == {"target-only", *RULES, "prompt-lookup"}
    for lane in lanes.values():
        assert {"tau", "ms_per_token", "speedup", "efficiency", "mismatches", "ties", "runs"} <= set(lane)
        assert lane["mismatches"] == 0 and lane["runs"] == 3
        # The whole loop with its prefill, in seconds on the wall: no less than what the lane's own clock counts.
        assert lane["ms_per_token_wall"] >= lane["ms_per_token_end_to_end"] > 0
        low, high = lane["interval"]
        assert low <= lane["speedup"] <= high
    assert lanes["target-only"]["tau"] == lanes["target-only"]["speedup"] == 1.0
    assert report["reference"] == "target-only" and lanes["target-only"]["interval"] == [1.0, 1.0]
    assert lanes["entropy"]["tau"] > 1.5
    assert len({lane["tokens"] for lane in lanes.values()}) == 1  # the same answers, counted the same way
    assert list(report["categories"]) == ["describe", "count", "story"]
    assert {"commit", "cpu", "cores", "threads"} <= set(report["machine"])


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
        (["render", "--split", "blue", "--output", "x.png"], "split"),
        (["render", "--output", "/none/x.png"], "/none"),
        (["bench", "--prompts", "0"], "--prompts"),
        (["bench", "--prompts", "301"], "--prompts is 301: 240 held-out toy scenes ship"),
        (["bench", "--prompts", "1", "--lanes", "chain", "oak"], "there is no lane oak: choose among target-only, "),
        (["generate", "--image", "https://example.org/a.png", "--prompt", "hi"], "https://example.org/a.png is"),
        (["dance"], "dance"),
        ([], "specllava"),
    ],
)
def test_bad_input_costs_one_line_on_stderr(arguments, said, picture, capsys):
    arguments = [str(picture) if argument == "IMAGE" else argument for argument in arguments]
    try:
        code = (toy if "render" in arguments else main)(arguments)
    except SystemExit as stop:
        code = stop.code
    errors = errors_of(capsys)
    assert code not in (0, None)
    assert len(errors) == 1 and said in errors[0]
    assert "Traceback" not in errors[0]


# ------------------------------------------------------------------------------------------- before the work


def test_what_cannot_be_written_or_read_is_reported_before_anything_is_computed(picture, tmp_path, capsys):
    race = ROOT / "assets" / "examples" / "3-count.json"
    for command in (
        f"generate --image {picture} --prompt hi --json", f"generate --image {picture} --prompt hi --trace",
        f"compare --image {picture} --prompt hi --json", "bench --prompts 1 --json", "evaluate --scenes 1 --json",
        "render --output", f"trace export {race} --html",
    ):  # fmt: skip
        words = command.split()
        for file, why in (("no/x.json", "there is no directory"), ("", "it is a directory")):
            assert (toy if words[0] in ("evaluate", "render") else main)([*words, str(tmp_path / file)]) == 1
            line = capsys.readouterr().err.strip()  # nothing was loaded
            assert line.startswith(f"specllava: {words[-1]} {tmp_path / file}") and f"be written: {why}" in line
    for command in ("generate", "compare"):
        assert main([command, "--image", "/none.png", "--prompt", "hi"]) == 1
        assert main([command, "--image", str(picture), "--prompt", "hi", "--preset", "nope"]) == 1
    assert [line.split(" ")[0] for line in capsys.readouterr().err.splitlines()] == ["specllava:"] * 4


def test_commands_that_load_say_so_before_they_import_torch(picture):
    """The imports take ten seconds on a slow machine, in which nothing was said."""
    said = program(
        """
import sys
from recipes.toy.__main__ import main as toy
from specllava.cli import commands, options
from specllava.cli import main as cli
from specllava.cli import options
def notify(line):
    print(line, not {"torch", "transformers"} & sys.modules.keys())
    sys.exit(0)
options.print_notice = notify
for words in sys.argv[1:]:
    try:
        (toy if words.split()[0] in ("evaluate", "record") else cli.main)(words.split())
    except SystemExit:
        pass
""",
        f"generate --image {picture} --prompt hi",
        f"compare --image {picture} --prompt hi --target some/where",
        "bench",
        "distill --target a/b --draft c --data d --images e --output f",
        "draft init --source a/b --target c/d --output f",
        "evaluate",
        "record --output f",
    ).splitlines()
    names = ("toy", "some/where", "toy", "a/b and c", "a/b and c/d", "toy", "toy")
    assert said == [f"loading {name}: torch and transformers first, then the weights True" for name in names]


def test_commands_that_load_no_model_import_nothing_that_is_slow(tmp_path):
    """``trace export`` imported gradio, which takes three times as long as all it does."""
    race = shutil.copy(ROOT / "assets" / "examples" / "3-count.json", tmp_path)
    found = program(
        """
import sys
from recipes.toy.__main__ import main as toy
from specllava.cli.main import main
codes = [(toy if words.startswith("render") else main)(words.split()) for words in sys.argv[1:]]
print(codes, sorted({"torch", "transformers", "gradio", "pandas"} & sys.modules.keys()))
""",
        f"render --output {tmp_path / 'scene.png'} --size 32",
        f"trace export {race} --html {tmp_path / 'race.html'}",
    ).splitlines()
    assert found[-1] == "[0, 0] []"


def modules(*packages):
    """Dotted names of packages' modules."""
    paths = [path.relative_to(ROOT) for package in packages for path in sorted((ROOT / package).rglob("*.py"))]
    return [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths]


def test_what_draws_traces_needs_no_torch_and_a_saved_page_no_gradio():
    """The direction of imports is a matter of contracts in ``pyproject.toml``; this is of what they load."""
    names = ("config", "tree", "metrics", "cli.main", "distill.config", "models.presets")
    stages = [[f"specllava.{name}" for name in names]]
    stages += [["specllava.cli.commands", "visual.notebook", "visual.figures", *modules("visual/player")]]
    text = "import importlib, sys\nfor stage in sys.argv[1:]:\n    [*map(importlib.import_module, stage.split())]\n"
    text += "    print(*sorted({'torch', 'transformers', 'gradio', 'plotly'} & sys.modules.keys()))"
    found = program(text, *map(" ".join, (*stages, modules("visual")))).splitlines()
    assert [line.split() for line in found] == [[], ["plotly"], ["gradio", "plotly"]]
    assert all(getattr(specllava, name) is not None for name in specllava.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Sponge'"):
        specllava.Sponge  # noqa: B018 - the access is the test


def test_options_are_read_in_every_spelling(capsys):
    """Pictures add up however often the option is given."""
    for words, images in (
        ("--image a b --prompt x", "a b"), ("--image a --depth 3 --image=b --prompt x --image c d", "a b c d"),
        ("--prompt x --quantization int8", ""),
    ):  # fmt: skip
        command = cli._parse(["generate", *words.split()], cli.Command, "specllava", None)
        assert command.image == tuple(map(Path, images.split())) and command.prompt == "x"
        assert (command.pair.loading.quantization == "int8") == ("int8" in words)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out.split() == ["specllava", project["version"]]


@pytest.mark.usefixtures("pair")
def test_an_answer_of_one_token_has_no_speed(picture, capsys):
    assert main(["compare", "--image", str(picture), "--prompt", "What is there?", "--max-new-tokens", "1"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "identical: 1 of 1 tokens the prompt's own pass gave the whole answer: nothing was guessed" in said
    assert "nan" not in said


ASKED = "--prompt Describe."
NOTICED = {  # commands, and how often they report a draft that is never right
    f"generate {ASKED}": 1,
    f"generate {ASKED} --drafter none": 0,
    f"compare {ASKED}": 1,
    "bench --prompts 1 --rounds 1 --lanes chain topk": 1,
}


@pytest.mark.parametrize(("command", "kind"), [(f"generate {ASKED}", "perfect"), *((one, "bad") for one in NOTICED)])
def test_a_draft_that_is_never_right_is_reported_beside_the_answer(command, kind, capsys, monkeypatch):
    for module in (options, commands):
        monkeypatch.setattr(module, "load_pair", lambda chosen: models.pair(kind))
    assert main([*command.split(), "--max-new-tokens", "60"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "the target hardly accepts what bad" in line]
    assert len(lines) == (NOTICED[command] if kind == "bad" else 0)


# ------------------------------------------------------------------------------------------- when something breaks


def raised_from(*errors: Exception) -> Exception:
    """The first of several errors, each with the next as its cause."""
    for error, cause in pairwise(errors):
        error.__cause__ = cause
    return errors[0]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RuntimeError("two\nlines"), "RuntimeError: two lines (SPECLLAVA_DEBUG=1 shows where)"),
        (AttributeError("'list' has no attribute 'get'"), "AttributeError: 'list' has no"),
        (Exception("bare"), "Exception: bare ("),
        (ValueError(), "ValueError:  ("),
        (ValueError("foreseen"), "foreseen"),
        (  # torchvision for another torch, in transformers' lazy imports: "Could not import module ..."
            raised_from(ModuleNotFoundError("Could not import"), ImportError("again"), RuntimeError("no such nms")),
            "an installed package cannot be imported, RuntimeError: no such nms: install it anew to fit the others, or",
        ),
    ],
)
def test_whatever_is_raised_ends_in_one_line(error, line, tmp_path, capsys, monkeypatch):
    def fails(self, console):
        raise error

    monkeypatch.setattr(Render, "run", fails)
    command = ["render", "--output", str(tmp_path / "x.png")]
    assert toy(command) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"specllava: {line}") and told.count("\n") == 1
    monkeypatch.setenv("SPECLLAVA_DEBUG", "1")
    assert toy(command) == 1
    told = capsys.readouterr().err
    assert "Traceback" in told and "in fails" in told and told.splitlines()[-1].startswith(f"specllava: {line}")


def test_ctrl_c_ends_in_one_line_and_130_while_modules_are_imported_too(tmp_path, capsys, monkeypatch):
    def stops(self, console):
        raise KeyboardInterrupt

    monkeypatch.setattr(Render, "run", stops)
    assert toy(["render", "--output", str(tmp_path / "x.png")]) == 130
    assert capsys.readouterr().err == "specllava: stopped\n"
    text = """
import builtins, runpy, sys
real = builtins.__import__
def stopped(name, *rest, **named):
    if name == "tyro":
        raise KeyboardInterrupt
    return real(name, *rest, **named)
builtins.__import__ = stopped
sys.stderr = sys.stdout
try:
    runpy.run_module("specllava", run_name="__main__", alter_sys=True)
except SystemExit as stop:
    print(stop.code)
"""
    assert program(text) == "specllava: stopped\n130\n"


@pytest.mark.usefixtures("pair")
def test_a_stopped_benchmark_tells_what_it_has(tmp_path, capsys, monkeypatch):
    """Ctrl-C threw away every finished prompt."""
    out, requests, real = tmp_path / "bench.json", [], Pair.request

    def request(self, lane, **options):
        requests.append(lane.name)
        if len(requests) == 14:  # behind eight of the warm-up, in the third prompt, in the second of two lanes
            raise KeyboardInterrupt
        return real(self, lane, **options)

    monkeypatch.setattr(Pair, "request", request)
    command = ["bench", "--prompts", "3", "--max-new-tokens", "4", "--lanes", "chain", "--json", str(out)]
    assert main(command) == 0
    assert "2 prompts" in capsys.readouterr().out
    lanes = json.loads(out.read_text())["lanes"]
    assert {name: lane["runs"] for name, lane in lanes.items()} == {"target-only": 2, "chain": 2}
    requests[:] = ["warm"] * 7  # in the warm-up: nothing is kept of it
    out.unlink()
    assert main(command) == 130
    assert not out.exists()
