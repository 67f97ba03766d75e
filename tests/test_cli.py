"""Commands: what they print and write, and that bad input costs one line on stderr."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from safetensors.torch import load_file, save_file
from support import checkpoints, models

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


@pytest.mark.usefixtures("pair")
def test_generate_writes_what_it_prints_and_records_the_targets_view_for_a_trace_alone(
    picture, tmp_path, capsys, monkeypatch
):
    recorded, real = [], Pair.request

    def request(self, lane, caches=None, record=True):
        recorded.append(record)
        return real(self, lane, caches, record)

    monkeypatch.setattr(Pair, "request", request)
    out, trace = tmp_path / "out.json", tmp_path / "trace.json"
    command = ["generate", "--image", str(picture), "--prompt", "Describe this.", "--max-new-tokens", "12"]
    command += ["--json", str(out)]
    assert main(command) == 0
    lane = json.loads(out.read_text())["speculative"]
    assert lane["text"] and " ".join(lane["text"].split()) in " ".join(capsys.readouterr().out.split())
    assert main([*command, "--drafter", "none", "--trace", str(trace)]) == 0
    assert json.loads(out.read_text())["target_only"] == lane  # both lanes say the same
    assert recorded == [False, True] and all(step["target"] for step in json.loads(trace.read_text())["steps"])


def test_what_a_checkpoint_asks_for_is_printed_and_what_is_not_followed_is_refused(picture, tmp_path, capsys):
    target = shutil.copytree(ROOT / "assets" / "toy" / "target", tmp_path / "target")
    fields = json.loads((target / "generation_config.json").read_text())
    command = ["generate", "--image", str(picture), "--prompt", "Describe this.", "--target", str(target)]
    command += ["--max-new-tokens", "4"]
    (target / "generation_config.json").write_text(json.dumps(fields | {"repetition_penalty": 1.05, "min_p": 0.1}))
    assert main(command) == 0
    assert "generation_config.json asks for repetition_penalty 1.05, min_p 0.1\n" in capsys.readouterr().err
    (target / "generation_config.json").write_text(json.dumps(fields | {"num_beams": 4}))
    assert main(command) != 0
    assert "generation_config.json asks for num_beams = 4" in errors_of(capsys)[-1]


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
    assert main([*command, "--max-new-tokens", "1"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "identical: 1 of 1 tokens the prompt's own pass gave the whole answer: nothing was guessed" in said
    assert "nan" not in said


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
        (["generate", "--image", "IMAGE", "--prompt", "hi", "--threads", "-1"], "--threads is -1: 0 or more"),
        (["generate", "--image", __file__, "--prompt", "hi"], "not a readable image"),
        (["render", "--split", "blue", "--output", "x.png"], "split"),
        (["render", "--output", "/none/x.png"], "/none"),
        (["bench", "--prompts", "0"], "--prompts"),
        (["bench", "--rule", "chain"], "every lane has its own --rule: choose lanes with --lanes"),
        (["bench", "--prompts", "301"], "--prompts is 301: 240 held-out toy scenes ship"),
        (["bench", "--prompts", "1", "--lanes", "chain", "oak"], "there is no lane oak: choose among target-only, "),
        (["generate", "--image", "https://example.org/a.png", "--prompt", "hi"], "https://example.org/a.png is"),
        (["compare", "--image", "/none.png", "--prompt", "hi"], "/none.png"),
        (["trace", "view", "/none.json"], "none.json cannot be read"),
        (["trace", "export", __file__, "--html", "x.html"], "test_cli.py is not a recorded race"),
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


def test_nothing_slow_is_imported_before_a_command_says_so_or_where_it_is_not_needed(picture, tmp_path):
    """The imports take ten seconds on a slow machine. Their direction is a matter of contracts in pyproject.toml."""
    folders = {folder: sorted((ROOT / folder).rglob("*.py")) for folder in ("visual/player", "visual")}
    drawing, page = (
        [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths]
        for paths in folders.values()
    )
    names = ("config", "tree", "metrics", "cli.main", "distill.config", "models.presets")
    loading = (
        f"generate --image {picture} --prompt hi", f"compare --image {picture} --prompt hi --target some/where",
        "bench", "distill --target a/b --draft c --data d --images e --output f",
        "draft init --source a/b --target c/d --output f", "evaluate", "record --output f",
    )  # fmt: skip
    race = shutil.copy(ROOT / "assets" / "examples" / "3-count.json", tmp_path)
    free = f"render --output {tmp_path / 'a.png'} --size 32", f"trace export {race} --html {tmp_path / 'a.html'}"
    stages = [f"specllava.{name}" for name in names], ["visual.notebook", "visual.figures", *drawing], page
    said = program(PROGRAM, json.dumps([stages[0], loading, free, *stages[1:]])).splitlines()
    models = ("toy", "some/where", "toy", "a/b and c", "a/b and c/d", "toy", "toy")
    lines = [f"loading {name}: torch and transformers first, then the weights []" for name in models]
    drawn = ["['plotly']"] * 2
    assert [line for line in said if line.endswith("]")] == ["[]", *lines, *drawn, "['gradio', 'plotly']"]
    assert all(getattr(specllava, name) is not None for name in specllava.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Sponge'"):
        specllava.Sponge  # noqa: B018 - the access is the test


PROGRAM = """
import importlib, json, sys
def slow():
    return sorted({"torch", "transformers", "gradio", "plotly"} & sys.modules.keys())
def load(names):
    for name in names:
        importlib.import_module(name)
    print(slow())
def notify(line):
    print(line, slow())
    sys.exit(0)
first, loading, free, drawing, page = json.loads(sys.argv[1])
load(first)
from recipes.toy.__main__ import main as toy
from specllava.cli import main as cli, options
told, options.print_notice = options.print_notice, notify
for words in map(str.split, loading):
    try:
        (toy if words[0] in ("evaluate", "record") else cli.main)(words)
    except SystemExit:
        pass
options.print_notice = told
assert not any((toy if words[0] == "render" else cli.main)(words) for words in map(str.split, free))
load([])
assert "pandas" not in sys.modules
load(drawing)
load(page)
"""


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


def test_a_draft_that_is_never_right_is_reported_once_beside_the_answer(capsys, monkeypatch):
    asked, bench = "--prompt Describe.", "bench --prompts 1 --rounds 1 --lanes chain topk"
    tried = {f"generate {asked}": ("perfect", "bad"), f"compare {asked}": ("bad",), bench: ("bad",)}
    for command, kind in ((command, kind) for command, kinds in tried.items() for kind in kinds):
        for module in (options, commands):
            monkeypatch.setattr(module, "load_pair", lambda chosen, kind=kind: models.pair(kind))
        assert main([*command.split(), "--max-new-tokens", "40"]) == 0
        lines = [line for line in capsys.readouterr().err.splitlines() if "the target hardly accepts what bad" in line]
        assert len(lines) == (kind == "bad"), command


# ------------------------------------------------------------------------------------------- when something breaks


def test_whatever_is_raised_ends_in_one_line(tmp_path, capsys, monkeypatch):
    """The last as transformers' lazy imports raise it where torchvision was built for another torch."""
    lazy = ModuleNotFoundError("Could not import")
    lazy.__cause__ = RuntimeError("no such nms")
    command = ["render", "--output", str(tmp_path / "x.png")]
    for error, line in (
        (RuntimeError("two\nlines"), "RuntimeError: two lines (SPECLLAVA_DEBUG=1 shows where)"),
        (ValueError(), "ValueError:  ("),
        (ValueError("foreseen"), "foreseen"),
        (lazy, "an installed package cannot be imported, RuntimeError: no such nms: install it anew to fit the others"),
    ):

        def fails(self, console, error=error):
            raise error

        monkeypatch.setattr(Render, "run", fails)
        monkeypatch.delenv("SPECLLAVA_DEBUG", raising=False)
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


def test_a_stopped_benchmark_tells_what_it_has(tmp_path, capsys, monkeypatch):
    """Ctrl-C threw away every finished prompt."""
    out, requests, real = tmp_path / "bench.json", [], Pair.request

    def request(self, lane, **options):
        requests.append(lane.name)
        if len(requests) == 14:  # behind eight of the warm-up, in the third prompt, in the second of two lanes
            raise KeyboardInterrupt
        return real(self, lane, **options)

    monkeypatch.setattr(Pair, "request", request)
    monkeypatch.setattr(commands, "load_pair", lambda chosen: models.pair("mixed"))
    command = ["bench", "--prompts", "3", "--max-new-tokens", "4", "--lanes", "chain", "--json", str(out)]
    assert main(command) == 0
    assert "2 prompts" in capsys.readouterr().out
    lanes = json.loads(out.read_text())["lanes"]
    assert {name: lane["runs"] for name, lane in lanes.items()} == {"target-only": 2, "chain": 2}
    requests[:] = ["warm"] * 7  # in the warm-up: nothing is kept of it
    out.unlink()
    assert main(command) == 130
    assert not out.exists()


# ----------------------------------------------------------------------------------------------------- hostile files


MOST_SECONDS = 10  # of CPU: a call with an ordinary checkpoint takes one; each of these took minutes, or all memory
PICTURE = Path(__file__).parents[1] / "assets" / "examples" / "1-describe.png"


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = checkpoints.write_llava(tmp_path_factory.mktemp("ordinary") / "target")
    assert main(asking(target)) == 0  # imports what the calls need, before their time is taken
    return target


@pytest.fixture
def target(ordinary: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(ordinary, tmp_path / "target"))


def refusal(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """The one line in which a call ends, soon."""

    def end(*_: object) -> None:
        raise TimeoutError("more CPU than any refusal may take")

    capsys.readouterr()
    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, 6 * MOST_SECONDS)
    began = time.process_time()
    try:
        code, used = main(arguments), time.process_time() - began
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    lines = capsys.readouterr().err.splitlines()
    (line,) = (one for one in lines if one.startswith("specllava: "))
    assert (code, line) == (1, lines[-1]) and len(line) < 400 and not any("Traceback" in one for one in lines)
    assert used < MOST_SECONDS, line
    return line


def asking(target: Path, prompt: str = "Hi") -> list[str]:
    named = ["generate", "--target", str(target), "--image", str(PICTURE), "--prompt", prompt]
    return [*named, "--max-new-tokens", "3"]


def edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    fields = json.loads(file.read_text())
    change(fields)
    file.write_text(json.dumps(fields))


def test_configurations_that_fit_nowhere_or_never_end_and_a_panic_of_the_tokenizer_are_one_line(capsys, target: Path):
    """The last: a regular expression exceeds its limit of tries, and tokenizers panics, as Rust does."""
    plain = (target / "config.json").read_text()
    for part, name, size in (
        ("text_config", "intermediate_size", 10**12), ("text_config", "num_attention_heads", 10**6),
        ("vision_config", "image_size", 10**6),
    ):  # fmt: skip
        edit(target / "config.json", lambda fields, part=part, more={name: size}: fields[part].update(more))
        assert refusal(capsys, asking(target))
        (target / "config.json").write_text(plain)
    nested = ', "more": ' + "[" * 200_000 + "]" * 200_000 + "}"
    (target / "config.json").write_text(plain.rstrip().removesuffix("}") + nested)
    assert "recursion" in refusal(capsys, asking(target))
    (target / "config.json").write_text(plain)
    pattern = {"type": "Split", "pattern": {"Regex": "(▁?(a|aa)+)+Q"}, "behavior": "Isolated", "invert": False}
    edit(target / "tokenizer.json", lambda fields: fields.update(pre_tokenizer=pattern))
    assert "cannot read" in refusal(capsys, asking(target, "a" * 60))


def test_weights_of_swapped_names_are_one_line(capsys, target: Path):
    other = {"q_proj": "up_proj", "up_proj": "q_proj"}

    def swapped(name: str) -> str:
        *front, kind, end = name.split(".")
        return ".".join([*front, other.get(kind, kind), end])

    for file in target.glob("*.safetensors"):
        weights = {swapped(name): one for name, one in load_file(file).items()}
        save_file(weights, file, metadata={"format": "pt"})
    edit(
        target / "model.safetensors.index.json",
        lambda fields: fields.update(weight_map={swapped(name): file for name, file in fields["weight_map"].items()}),
    )
    assert " weights " in refusal(capsys, asking(target))


def test_rows_of_nested_lists_and_of_many_megabytes_are_refused(capsys, tmp_path: Path):
    data = tmp_path / "rows.jsonl"
    for text, words in (
        ('{"a":' * 200_000 + "1" + "}" * 200_000, "not JSON"),
        (json.dumps({"prompt": "why? " * 6_000_000}), "29,999,999 characters of prompt do not fit the context of 1024"),
    ):
        data.write_text(text)
        limits = ["--prompts", "1", "--rounds", "1", "--max-new-tokens", "3"]
        assert words in refusal(capsys, ["bench", "--data", str(data), *limits])
