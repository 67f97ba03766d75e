"""The distill command from files to files: exact resume, the best draft, early stop, its report, and bad input."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support import models
from support.amount import sample
from support.distilling import arguments, rows, same, weights, write_data, write_pair

from recipes.toy.build import build_processor, special_ids
from specllava.cli.main import main
from specllava.config import DecodingConfig
from specllava.metrics import summarise
from specllava.distill import loop as looping
from specllava.distill import run as run_module
from specllava.distill.config import DistillConfig
from specllava.distill.stage import chat_states
from specllava.distill.validation import Validation
from specllava.findings.distillation import Report, ValidationResult
from specllava.models.drafts.draft_vlm import DraftLlava, save
from specllava.pair import Pair
from visual.figures.distillation import figure

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A pair, data, and the outcome of one unbroken run."""
    root = tmp_path_factory.mktemp("distil")
    write_pair(root)
    write_data(root, 30)
    assert main(arguments(root, root / "whole")) == 0
    return root


def report(directory):
    return Report.read(directory / "report.json")


def complaint(capsys, place, output, **options):
    """The one line that the command must end with."""
    capsys.readouterr()
    assert main(arguments(place, output, **options)) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("specllava: ")]
    assert len(lines) == 1 and len(lines[0]) < 420
    return lines[0].removeprefix("specllava: ")


# --------------------------------------------------------------------------------------------- whole runs


def test_a_run_leaves_a_draft_that_loads_a_report_and_a_picture(place):
    found = report(place / "whole")
    assert found.state == "finished" and found.rows == 28 and found.prompts == 2 and found.left_out.keys() <= {
        "rows cut", "rows with no answer in their length"
    }  # fmt: skip
    assert [check.step for check in found.checks] == [0, 3, 6]
    assert [point["step"] for point in found.curve] == list(range(6))
    assert all(point["loss"] > 0 and point["kl"] > 0 for point in found.curve)
    assert found.checks[-1].kl < found.checks[0].kl  # it learns
    for draft in ("draft", "last"):
        assert Pair.load(place / "target", place / "whole" / draft, name="distilled", device="cpu").draft is not None
    assert not (place / "whole" / "work" / "checkpoints" / "draft").exists()
    page = (place / "whole" / "curve.html").read_text()
    assert "tokens per target pass" in page and "<script src" not in page and "<link" not in page
    drawn = figure(found)
    assert list(drawn.data[1].y) == [check.kl for check in found.checks]
    assert list(drawn.data[2].y) == [check.tau for check in found.checks]


def test_without_a_weight_the_curve_has_no_kl_and_is_drawn(place):
    """The report's description promised one."""
    assert main(arguments(place, place / "words", steps=1, kl_weight=0.0)) == 0
    found = report(place / "words")
    assert [point.keys() for point in found.curve] == [{"step", "rate", "loss"}]
    assert "no ``kl`` where its weight is 0" in " ".join(Report.__doc__.split()) and found.best.kl > 0
    assert len(figure(found).data) > 0


def test_what_is_validated_is_the_draft_that_is_kept(place):
    """The kept directory gives the numbers that the report has for its best step."""
    found = report(place / "whole")
    assert main(arguments(place, place / "again", draft=place / "whole" / "draft", steps=1)) == 0
    first = report(place / "again").checks[0]
    assert first.tau == found.best.tau and first.kl == pytest.approx(found.best.kl, rel=1e-6)


def test_a_run_that_is_done_is_not_done_again(place, capsys):
    before = (place / "whole" / "report.json").stat().st_mtime_ns
    assert main(arguments(place, place / "whole")) == 0
    assert "already done" in capsys.readouterr().out
    assert (place / "whole" / "report.json").stat().st_mtime_ns == before


def test_a_run_killed_in_the_middle_ends_with_the_same_weights(place):
    """It is a real process, and it is killed for good between two checkpoints."""
    options = {"steps": 24, "validate_every": 10, "checkpoint_every": 5, "ema": 0.9}
    output = place / "killed"
    command = [sys.executable, "-m", "specllava", *arguments(place, output, **options)]
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True, **quiet) as running:
        checkpoint = output / "work" / "checkpoints" / "draft" / "last.pt"
        until = time.monotonic() + 240
        while not checkpoint.exists():
            assert running.poll() is None and time.monotonic() < until
            time.sleep(0.01)
        os.killpg(running.pid, signal.SIGKILL)
        assert running.wait() == -signal.SIGKILL
    step = torch.load(checkpoint, weights_only=True)["step"]
    assert step % 5 == 0 and 0 < step < 24 and not (output / "last").exists()
    assert report(output).state == "running"
    assert main(arguments(place, output, **options)) == 0
    assert main(arguments(place, place / "unbroken", **options)) == 0
    for draft in ("draft", "last"):
        assert same(weights(output / draft), weights(place / "unbroken" / draft))
    one, other = report(output), report(place / "unbroken")
    assert one.checks == other.checks and one.curve == other.curve and one.left_out == other.left_out


@pytest.mark.night
def test_a_run_whose_worker_is_not_forked_is_the_same_run(place):
    """A worker process that shares no memory could not be given its batches; it is the default outside of Linux."""
    program = (
        "import multiprocessing, sys; multiprocessing.set_start_method('spawn'); from specllava.cli.main import main;"
        " sys.exit(main(sys.argv[1:]))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, *arguments(place, place / "spawned")], cwd=ROOT, capture_output=True, text=True,
        env=os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}, timeout=300, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert report(place / "spawned").curve == report(place / "whole").curve
    assert same(weights(place / "spawned" / "last"), weights(place / "whole" / "last"))


@pytest.mark.parametrize("die_at", sample([5, 2], 1))
def test_both_stages_go_on_where_they_were(place, tmp_path, monkeypatch, die_at):
    """The first stage moves the projector alone, and a failure in either stage costs nothing."""
    options = {"projector_steps": 4, "steps": 4, "validate_every": 2, "gradient_checkpointing": True}
    whole = place / "stages"
    if not whole.exists():
        assert main(arguments(place, whole, **options)) == 0
    found = report(whole)
    assert [check.step for check in found.checks] == [0, 4, 6, 8]
    assert [point["step"] for point in found.curve] == list(range(8))
    before, aligned = weights(place / "draft"), weights(whole / "work" / "aligned")
    changed = {name for name, weight in before.items() if not torch.equal(weight, aligned[name])}
    assert changed and all("multi_modal_projector" in name for name in changed)
    real, done = looping._learn, []

    def fails(*given):
        done.append(1)
        if len(done) > die_at:
            raise OSError("the disk is gone")
        return real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(looping, "_learn", fails)
        assert main(arguments(place, tmp_path / "run", **options)) == 1
    assert main(arguments(place, tmp_path / "run", **options)) == 0
    assert same(weights(whole / "last"), weights(tmp_path / "run" / "last"))
    assert report(tmp_path / "run").checks == found.checks and report(tmp_path / "run").curve == found.curve


def test_a_frozen_projector_stays_and_checkpointing_changes_nothing(place, tmp_path):
    assert main(arguments(place, tmp_path / "frozen", freeze_projector=True)) == 0
    before, after = weights(place / "draft"), weights(tmp_path / "frozen" / "last")
    same_ones = {name for name, weight in before.items() if torch.equal(weight, after[name])}
    assert same_ones == {name for name in before if "multi_modal_projector" in name}
    assert main(arguments(place, tmp_path / "again", gradient_checkpointing=True)) == 0
    for name, weight in weights(place / "whole" / "last").items():
        torch.testing.assert_close(weights(tmp_path / "again" / "last")[name], weight, rtol=1e-4, atol=1e-6)


@pytest.fixture
def fresh_state():
    """accelerate remembers the precision of a process; these tests choose another one."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.usefixtures("fresh_state")
def test_bfloat16_computes_and_leaves_float32_weights(place, tmp_path):
    assert main(arguments(place, tmp_path / "run", precision="bf16")) == 0
    assert {weight.dtype for weight in weights(tmp_path / "run" / "last").values()} == {torch.float32}
    ours, theirs = ([point["loss"] for point in report(run).curve] for run in (tmp_path / "run", place / "whole"))
    assert ours != theirs and ours == pytest.approx(theirs, rel=0.05)


@pytest.mark.night
@pytest.mark.usefixtures("fresh_state")
def test_a_vocabulary_that_fills_three_quarters_of_a_cores_cache_is_no_division_by_zero(place, tmp_path):
    """32 rows of 49,152 gradients, through a target's head stored by columns, killed the process on a CPU with AMX."""
    target = copy.deepcopy(models.target())
    target.resize_token_embeddings(49152)
    save(target, models.processor(), tmp_path / "target", torch.float32)
    options = {"drafter": "eagle", "draft": None, "precision": "bf16", "chunk": 32, "steps": 1, "validate_every": 0}
    assert main(arguments(place, tmp_path / "run", target=tmp_path / "target", **options)) == 0


def test_a_kill_after_the_last_step_costs_nothing(place, tmp_path, monkeypatch):
    """The training is over, its draft not yet saved."""
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "replace_draft", lambda *_: (_ for _ in ()).throw(OSError("the disk is gone")))
        assert main(arguments(place, tmp_path / "run")) == 1
    with monkeypatch.context() as patch:
        patch.setattr(looping, "_learn", lambda *_: pytest.fail("a step was done again"))
        assert main(arguments(place, tmp_path / "run")) == 0
    assert same(weights(tmp_path / "run" / "last"), weights(place / "whole" / "last"))
    assert not (tmp_path / "run" / "work" / "checkpoints" / "draft").exists()


def test_own_answers_serve_a_run(place, tmp_path):
    options = {"answers": "target", "temperature": 2.0, "tensorboard": True}
    assert main(arguments(place, tmp_path / "run", **options)) == 0
    answers = (tmp_path / "run" / "work" / "answers" / "answers-0-of-1.jsonl").read_text().splitlines()
    assert len(answers) == report(tmp_path / "run").rows == 12  # what six steps of two rows need
    assert list((tmp_path / "run" / "tensorboard").rglob("events.out.tfevents*"))
    assert all(point["kl"] > 0 for point in report(tmp_path / "run").curve)


# ------------------------------------------------------------------------------------------- validation


@pytest.mark.parametrize("seed", models.SEEDS)
def test_a_validation_measures_what_decoding_and_whole_passes_say(tmp_path, seed):
    """τ is that of the ordinary loop; KL and agreement are those of whole passes without any cache."""
    from accelerate import Accelerator

    bundle, draft, config = models.pair(None, seed), models.draft("mixed", seed), DecodingConfig(max_new_tokens=12)
    numbers = (0, 1, 3)
    prompts = [models.prompt(number, seed) for number in numbers]
    watch = Validation(bundle, prompts, config, tmp_path / "draft", 0, Accelerator(cpu=True), lambda *_: None)
    assert watch(0, copy.deepcopy(draft), looping.TrainingLog()) is False
    check = watch.checks[0]
    traces = [models.decode(models.pair("mixed", seed), prompt, config) for prompt in prompts]
    assert check.tau == summarise(traces).tau > 1.0
    kl, agreed, read = 0.0, 0, 0
    with torch.inference_mode():
        for prompt, trace in zip(prompts, traces, strict=True):
            ids = torch.cat([prompt.input_ids, torch.tensor([trace.token_ids])], dim=1)
            rows = slice(prompt.length - 1, -1)
            ours, theirs = (
                model.lm_head(chat_states(model, ids, prompt.features))[0, rows].log_softmax(-1)
                for model in (draft, bundle.target)
            )
            assert theirs.argmax(-1).tolist() == list(trace.token_ids)
            kl += float((theirs.exp() * (theirs - ours)).sum())
            agreed += int((ours.argmax(-1) == theirs.argmax(-1)).sum())
            read += len(trace.token_ids)
    assert check.kl == pytest.approx(kl / read, rel=1e-6) and check.agreement == agreed / read


class Scripted(Validation):
    """Finds what it is told to; all else is as it is."""

    def __init__(self, keep, patience, taus, accelerator):
        super().__init__(models.pair(None), [], None, keep, patience, accelerator, lambda *_: None)
        self.taus = taus

    def _check(self, step, model):
        return ValidationResult(step, 1.0, 0.5, self.taus[step], 10, 5)


@pytest.mark.parametrize(
    ("taus", "patience", "looks", "best"),
    [
        ([2.0, 2.5, 2.4, 2.3, 2.6], 2, 4, 1),
        ([2.0, 2.5, 2.4, 2.6, 2.5, 2.5], 2, 6, 3),
        ([3.0, 2.0, 2.0, 2.0], 3, 4, 0),
        ([1.0, 2.0, 1.0, 1.0, 1.0], 0, 5, 1),
        ([2.0, 2.0, 2.0], 1, 2, 0),
    ],
)
def test_the_best_draft_is_kept_and_patience_ends(tmp_path, taus, patience, looks, best):
    from accelerate import Accelerator

    watch = Scripted(tmp_path / "draft", patience, taus, Accelerator(cpu=True))
    seen = []
    for step in range(len(taus)):
        model = DraftLlava(models.draft("bad").config)
        model.lm_head.weight.data.fill_(float(step))
        seen.append(step)
        if watch(step, model, looping.TrainingLog()):
            break
    assert len(seen) == looks
    assert weights(tmp_path / "draft")["lm_head.weight"].unique().tolist() == [float(best)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["draft"]


# -------------------------------------------------------------------------------------------- bad input


def test_another_runs_output_is_refused_with_the_options_that_differ(place, capsys):
    line = complaint(capsys, place, place / "whole", steps=7, seed=9)
    assert line.endswith("holds another run (steps 6 there, 7 here, seed 0 there, 9 here): choose another --output")
    line = complaint(capsys, place, place / "whole", **{"decoding.depth": 3})
    assert f"(decoding.depth {DecodingConfig().depth} there, 3 here)" in line
    assert "exists and is no distillation run" in complaint(capsys, place, place / "target")
    assert "exists and is no distillation run" in complaint(capsys, place, place / "data.json")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("target", "no model at"), ("draft", "no model at"), ("data", "no data file at"),
        ("images", "no images directory at"),
    ],
)  # fmt: skip
def test_a_wrong_path_is_refused_by_its_place(place, tmp_path, capsys, name, words):
    line = complaint(capsys, place, tmp_path / "run", **{name: tmp_path / "nowhere"})
    assert line.startswith(f"{words} {tmp_path / 'nowhere'}: ")


def test_a_command_that_was_wrong_leaves_no_claim(place, tmp_path, capsys):
    assert "no data file at" in complaint(capsys, place, tmp_path / "run", data=tmp_path / "data.json")
    (tmp_path / "data.json").write_text("[]")
    assert "is empty" in complaint(capsys, place, tmp_path / "run", data=tmp_path / "data.json", steps=2)
    (tmp_path / "data.json").write_text(json.dumps(rows(4)[:3]))  # mended, in its place
    options = {"steps": 2, "validate_every": 0, "validation_prompts": 1, "images": place / "images"}
    assert main(arguments(place, tmp_path / "run", data=tmp_path / "data.json", **options)) == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "data.json is empty"),
        ('[{"question": "Why?"}]', "not in LLaVA's format: no row can be used: 1 without conversations (first: row 0)"),
        (json.dumps(rows(3)[2:]), "1 usable rows are too few for 2 held out and 1 to learn from"),
    ],
)
def test_data_that_is_none_is_refused(place, tmp_path, capsys, text, words):
    (tmp_path / "data.json").write_text(text)
    assert words in complaint(capsys, place, tmp_path / "run", data=tmp_path / "data.json")


def test_a_draft_for_another_target_is_refused(place, tmp_path, capsys):
    recipe = replace(models.RECIPE, vocabulary=300)
    processor = build_processor(recipe)
    stranger = DraftLlava(recipe.llava_config(1, recipe.draft_hidden, special_ids(processor)))
    save(stranger, processor, tmp_path / "stranger")
    line = complaint(capsys, place, tmp_path / "run", draft=tmp_path / "stranger")
    assert "the draft's tokenizer is not the target's" in line


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_checkpoint(place, tmp_path, capsys):
    """Steps of an absurd size throw the weights out of what float32 holds."""
    line = complaint(capsys, place, tmp_path / "run", learning_rate=1e30, warmup=0, checkpoint_every=1)
    assert line.startswith("draft: the loss is ")
    assert line.endswith("; the last checkpoint is kept: try a smaller --learning-rate, with another --output")
    step = int(line.split(" at step ")[1].split(";")[0])
    kept = torch.load(tmp_path / "run" / "work" / "checkpoints" / "draft" / "last.pt", weights_only=True)
    assert kept["step"] == step > 0
    assert all(bool(weight.isfinite().all()) for weight in kept["parts"][0].values())
    assert same(weights(tmp_path / "run" / "draft"), weights(place / "draft"))  # the best that was validated


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps": 0}, "steps"), ({"kl_weight": 1.5}, "kl_weight"), ({"temperature": 0}, "temperature"),
        ({"freeze_projector": True, "projector_steps": 3}, "a frozen projector cannot learn for 3 steps"),
    ],
)  # fmt: skip
def test_options_out_of_bounds_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        DistillConfig(**options)
