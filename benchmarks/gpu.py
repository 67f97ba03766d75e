"""What speculation brings on a GPU, in one command that an interruption does not spoil.

    python -m benchmarks.gpu --preset random-7b --budget 480 --out gpu.json    # one GPU with 24 GB, float32 needs 32
    python -m benchmarks.gpu --preset random-toy --out gpu.json                # the same on a CPU, in half a minute

``random-7b`` has the published shapes of LLaVA-1.5-7B and of its drafts and random weights: nothing is downloaded, and
times are those of the real pair. A random draft is never right, so acceptance is set by an oracle. Parts run in the
order of their worth, each fails by itself, and the file is written after each.
"""

from __future__ import annotations

import gc
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal

import torch
from PIL import Image

from benchmarks.passes import CONTEXT, pass_seconds, take_engine
from benchmarks.shared.command import free_port, run_command, show
from benchmarks.shared.oracle import OracleDrafter
from benchmarks.shared.random_pair import SizeName, build, device_for, feature_draft, size_of
from specllava.cli.options import check_outputs, write_json
from specllava.config import DecodingConfig
from specllava.metrics import compare_ids
from specllava.models.language_model import now
from specllava.models.options import DTypeName
from specllava.pair import Pair
from specllava.spec_decode.drafter import Drafter
from specllava.trace import StepTrace

DraftName = Literal["own", "eagle"]
RANDOM: Final[Mapping[str, SizeName]] = {"random-7b": "7b", "random-toy": "toy"}  # presets without weights of anyone
ROWS: Final = (1, 2, 4, 8, 16, 32, 64)
TAUS: Final = (2.0, 3.0, 4.0)  # that acceptance is drawn for
PICTURE: Final = Image.new("RGB", (640, 480), "teal")
QUESTION: Final = "Describe this image in detail."
BEYOND: Final = 24  # tokens after an answer, which its last trees may guess
GOALS: Final = (  # what is measured, whether its bound is the most, and the bound
    (("baseline", "share_of_peak"), False, 0.63),
    (("target passes", "over_one_row", 32), True, 1.15),
    (("drafting, eagle", "level", 10), True, 0.06),
    (("drafting, eagle", "cycle"), True, 2.25),
    (("known answer, eagle", "tree, tau 4", "speedup"), False, 2.0),
    (("known answer, eagle, exact", "chain, tau 4", "speedup"), False, 2.0),
)


def tree(depth: int, width: int, nodes: int) -> DecodingConfig:
    """Return the options of EAGLE-2's trees; of width 1 they are chains."""
    return DecodingConfig(rule="topk", depth=depth, width=width, nodes=nodes)


ALONE: Final = DecodingConfig(drafter="none")
CHAIN, TREE = tree(5, 1, 5), tree(8, 10, 59)  # EAGLE-2's 60 nodes, the root among them


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is measured.

    Args:
        repeats: passes of each kind.
        prompts, tokens: answers, and the tokens of each.
    """

    repeats: int
    prompts: int
    tokens: int


@dataclass
class Bench:
    """Pairs of a preset on a device, of which one is in memory at a time; and what is known of their answers.

    Args:
        preset: ``random-7b``, ``random-toy`` or a pair by its name.
    """

    preset: str
    device: str
    amount: Amount
    pairs: dict[tuple[DTypeName, DraftName], Pair] = field(default_factory=dict)

    def pair(self, draft: DraftName = "own", dtype: DTypeName = "auto", exact: bool = False) -> Pair:
        """Return a pair, made or loaded where it is not in memory; of another precision, the last one goes first."""
        if (dtype, "own") not in self.pairs:
            self.pairs.clear()
            gc.collect()
            torch.cuda.empty_cache()
            self.pairs[dtype, "own"] = self._make(dtype)
        if (dtype, draft) not in self.pairs:
            self.pairs[dtype, draft] = feature_draft(self.pairs[dtype, "own"], "eagle")
        found = self.pairs[dtype, draft]
        return replace(found, exact=True) if exact else found

    def _make(self, dtype: DTypeName) -> Pair:
        name = RANDOM.get(self.preset)
        if name is None:
            return Pair.from_preset(self.preset, device=self.device, dtype=dtype)
        asked = None if dtype == "auto" else getattr(torch, dtype)
        return build(name, *device_for(size_of(name), self.device, asked))


@dataclass(frozen=True, slots=True)
class Run:
    """Answers and their steps."""

    tokens: list[int]
    steps: list[StepTrace]

    @property
    def tau(self) -> float:
        """Tokens that a step emitted, on average."""
        return statistics.mean(len(one.emitted) for one in self.steps)

    @property
    def step(self) -> float:
        """Median seconds of a step."""
        return statistics.median(one.seconds.total for one in self.steps)

    @property
    def draft(self) -> float:
        """Median seconds of drafting in a step."""
        return statistics.median(one.seconds.draft for one in self.steps)

    @property
    def token(self) -> float:
        """Seconds of a token: the median of a step over its tokens."""
        return self.step / self.tau


def question(pair: Pair, number: int) -> tuple[Image.Image | None, str]:
    """Return a picture, for a pair that sees, and a question."""
    return PICTURE if pair.sees else None, f"{QUESTION} {number}"


Wrap = Callable[[Drafter], Drafter]


def decode(
    pair: Pair, config: DecodingConfig, tokens: int, number: int = 0, wrap: Wrap = lambda drafter: drafter,
    answer: Sequence[int] = (),
) -> Run:  # fmt: skip
    """Answer a prompt, up to a number of tokens.

    Args:
        number: of the question.
        wrap: makes the drafter of the pair's own.
        answer: that is known; a step that leaves it ends the run, and is not among its steps.
    """
    lane = pair.lane(*question(pair, number), replace(config, max_new_tokens=tokens + BEYOND))
    request, steps = pair.request(lane, record=False), list[StepTrace]()
    request.drafter = wrap(request.drafter)
    request.prefill()
    while request.finished is None and len(request.emitted) < tokens:
        request.propose()
        steps.append(request.verify())
        if answer and request.emitted != list(answer[: len(request.emitted)]):
            steps.pop()
            break
    return Run(list(request.emitted), steps)


def decode_warm(pair: Pair, config: DecodingConfig, tokens: int) -> Run:
    """Answer a prompt twice, since passes are captured in the first answer; return the second."""
    return [decode(pair, config, tokens) for _ in range(2)][1]


def weight_bytes(pair: Pair) -> int:
    """Return the bytes of the weights that a pass over one token reads: layers and head, a row of the embeddings."""
    decoder, head = pair.target.get_decoder(), pair.target.get_output_embeddings()
    embedding = pair.target.get_input_embeddings()
    return int(sum(one.nbytes for one in decoder.parameters()) - embedding.weight.nbytes + head.weight.nbytes)


def peak_bandwidth(device: torch.device) -> float | None:
    """Return the bytes per second of a GPU's memory by its clock and width; ``None`` where torch does not know them."""
    properties = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    clock, width = (getattr(properties, name, 0) for name in ("memory_clock_rate", "memory_bus_width"))
    return 2e3 * clock * width / 8 or None  # kHz, two transfers a cycle; bits


def read_bandwidth(device: torch.device) -> float:
    """Return bytes per second of a product of a random matrix and a vector, as a pass over one token is."""
    rows, dtype = (65536, torch.bfloat16) if device.type == "cuda" else (512, torch.float32)
    matrix = torch.empty((rows, 8192), dtype=dtype, device=device).normal_()
    vector, taken = torch.ones(8192, dtype=dtype, device=device), list[float]()
    for _ in range(20):
        started = now(device)
        matrix @ vector
        taken.append(now(device) - started)
    return matrix.nbytes / statistics.median(taken[3:])


Part = Callable[[Bench], dict[str, Any]]


def baseline(bench: Bench) -> dict[str, Any]:
    """Measure the target alone: milliseconds a token, and its share of the memory's bandwidth."""
    pair = bench.pair()
    run = decode_warm(pair, ALONE, bench.amount.tokens)
    weights, peak = weight_bytes(pair), peak_bandwidth(pair.device)
    read = read_bandwidth(pair.device)
    return {
        "ms_token": 1e3 * run.token, "weights_gb": weights / 1e9, "gb_per_s": weights / run.token / 1e9,
        "peak_gb_per_s": None if peak is None else peak / 1e9, "read_gb_per_s": read / 1e9,
        "share_of_peak": None if peak is None else weights / run.token / peak,
        "share_of_read": weights / run.token / read, "passes": pair.pass_mode or "eager",
    }  # fmt: skip


def target_passes(bench: Bench) -> dict[str, Any]:
    """Measure passes of the target by their rows, in milliseconds and over a pass of one row."""
    engine = take_engine(bench.pair(), "target", CONTEXT + max(ROWS))
    taken = pass_seconds([engine], ROWS, bench.amount.repeats)[0]
    medians = {rows: statistics.median(seconds) for rows, seconds in taken.items()}
    over = {rows: one / medians[1] for rows, one in medians.items()}
    return {"ms": {rows: 1e3 * one for rows, one in medians.items()}, "over_one_row": over}


def drafting(bench: Bench, draft: DraftName) -> dict[str, Any]:
    """Measure a level of the draft, by drafts of more and less depth, and a cycle of 60 nodes, in target passes."""
    pair, tokens = bench.pair(draft), bench.amount.tokens
    one = decode_warm(pair, ALONE, tokens).step
    levels = {}
    for width in (1, 10):
        deep, flat = (decode_warm(pair, tree(depth, width, 59), tokens).draft for depth in (8, 2))
        levels[width] = (deep - flat) / 6
    cycle = decode_warm(pair, TREE, tokens)
    return {
        "level": {width: each / one for width, each in levels.items()},
        "cycle_ms": 1e3 * cycle.step, "cycle": cycle.step / one, "drafting_share": cycle.draft / cycle.step,
        "nodes": statistics.mean(len(each.tree) for each in cycle.steps), "passes": pair.pass_mode or "eager",
    }  # fmt: skip


def known_answer(bench: Bench, draft: DraftName, dtype: DTypeName, exact: bool) -> dict[str, Any]:
    """Measure the speed-up at set acceptance, and compare each answer with the target alone up to where it differs.

    Speed-ups are over the target alone whose passes run in the ordinary way. Only ordinary answers may differ.
    """
    pair, tokens = bench.pair(draft, dtype, exact), bench.amount.tokens
    usual, alone = (decode_warm(each, ALONE, tokens).token for each in (bench.pair(draft, dtype), pair))
    limit = replace(ALONE, max_new_tokens=tokens + BEYOND)
    known = [pair.generate(*question(pair, number), limit) for number in range(bench.amount.prompts)]
    found: dict[str, Any] = {"alone_ms_token": 1e3 * usual, "this_way_alone_ms_token": 1e3 * alone}
    for (name, config), tau in product((("chain", CHAIN), ("tree", TREE)), TAUS):
        runs = list[Run]()
        for number, answer in enumerate(one.token_ids for one in known):
            wrap = partial(OracleDrafter, answer=answer, tau=tau, first=exact, start=tokens * number)
            runs.append(decode(pair, config, tokens, number, wrap, answer))
        run = Run([token for one in runs for token in one.tokens], [step for one in runs for step in one.steps])
        verdicts = (compare_ids(one, own.tokens) for one, own in zip(known, runs, strict=True))
        margins = [one.margin for one in verdicts if one.margin is not None]
        found[f"{name}, tau {tau:g}"] = {
            "tau": run.tau, "ms_step": 1e3 * run.step, "ms_token": 1e3 * run.token, "speedup": usual / run.token,
            "tokens": len(run.tokens), "differ": len(margins), "largest_margin": max(margins, default=0.0),
        }  # fmt: skip
    return found


def memory(bench: Bench) -> dict[str, Any]:
    """Read the memory at its peak, and what ten more answers leave of it."""
    pair, tokens = bench.pair(), bench.amount.tokens
    if pair.device.type != "cuda":
        return {"peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9}
    torch.cuda.reset_peak_memory_stats(pair.device)
    decode_warm(pair, TREE, tokens)
    before = torch.cuda.memory_allocated(pair.device)
    for _ in range(10):
        decode(pair, TREE, tokens)
    return {
        "peak_gb": torch.cuda.max_memory_allocated(pair.device) / 1e9,
        "reserved_gb": torch.cuda.max_memory_reserved(pair.device) / 1e9,
        "more_bytes": torch.cuda.memory_allocated(pair.device) - before,
    }


def page(bench: Bench) -> dict[str, Any]:
    """Let a page over the pair race, asked as a program asks it; twice, since the first race captures passes.

    Raises:
        ValueError: a lane that does not end.
    """
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    from gradio_client import Client, handle_file

    from visual.page.page import build_page
    from visual.page.serve import serve
    from visual.page.state import PageState

    pair = bench.pair()
    state = PageState(lambda: pair, preset="")
    blocks = build_page(state)
    address = serve(blocks, "127.0.0.1", free_port(), block=False, state=state)
    try:
        with TemporaryDirectory() as folder:
            PICTURE.save(file := Path(folder) / "picture.png")
            client = Client(address, verbose=False)
            for _ in range(2):
                found = client.predict(
                    handle_file(file), QUESTION, {"max_new_tokens": bench.amount.tokens}, api_name="/compare"
                )
            client.close()
    finally:
        blocks.close(verbose=False)
    if unfinished := [name for name in ("target_only", "speculative") if found[name]["ended"] == "stopped"]:
        raise ValueError(f"the page's race did not end: {unfinished}")
    return {"speedup": found["speed_up"], "equal": found["equal"]}


def parts_of(preset: str, other: DTypeName) -> dict[str, Part]:
    """Return the parts by their names, in the order of their worth; answers are compared in another precision too."""
    drafts: tuple[DraftName, ...] = ("eagle", "own") if preset.startswith("random-") else ("own",)
    parts: dict[str, Part] = {"baseline": baseline, "target passes": target_passes}
    for draft in drafts:
        parts[f"drafting, {draft}"] = partial(drafting, draft=draft)
        parts[f"known answer, {draft}"] = partial(known_answer, draft=draft, dtype="auto", exact=False)
        parts[f"known answer, {draft}, exact"] = partial(known_answer, draft=draft, dtype="auto", exact=True)
    parts["memory"] = memory
    parts[f"known answer, {other}"] = partial(known_answer, draft="own", dtype=other, exact=False)
    parts[f"known answer, {other}, exact"] = partial(known_answer, draft="own", dtype=other, exact=True)
    return {**parts, "page": page}


def goals(parts: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the goals whose parts have been measured: name, value, bound and whether it is reached."""
    for (part, *keys), most, bound in GOALS:
        value = parts.get(part, {}).get("found")
        for key in keys:
            value = (value or {}).get(key)
        if value is not None:
            reached = value <= bound if most else value >= bound
            name = ", ".join(map(str, (part, *keys)))
            yield {"goal": name, "value": value, "bound": f"{'<=' if most else '>='} {bound:g}", "reached": reached}


def run_part(part: Part, bench: Bench) -> dict[str, Any]:
    """Run a part; one that fails leaves a line, and the others their results."""
    started, found, error = time.perf_counter(), None, None
    try:
        found = part(bench)
    except Exception as raised:  # noqa: BLE001 - whatever it is, what was measured before must not be lost
        error = f"{type(raised).__name__}: {' '.join(str(raised).split())[:300]}"
    gc.collect()  # engines in cycles hold gigabytes, and must not go while a pass is captured
    return {"found": found, "error": error, "seconds": time.perf_counter() - started}


def line_of(name: str, value: Any) -> str:
    """Return numbers with their names, one after the other."""
    if isinstance(value, dict):
        return f"{name}: " + "; ".join(line_of(str(key), each) for key, each in value.items())
    return f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"


def main(preset: str = "random-7b", budget: float = 480.0, out: Path = Path("gpu.json"), device: str = "auto") -> int:
    """Measure a pair, and write what is known after each part; a part that fails makes the exit code 1.

    Args:
        preset: random-7b, random-toy, or a pair by its name, such as toy.
        budget: seconds after which parts are skipped, each by its name.
        out: JSON file.
        device: cuda, cuda:N or cpu; auto takes the GPU if there is one.

    Raises:
        ValueError: the models do not fit the device; one line.
    """
    started = time.perf_counter()
    check_outputs(out=out)
    on_gpu = torch.cuda.is_available() and device != "cpu"
    if not on_gpu:
        torch.set_num_threads(1)  # of models so small, more are slower
    bench = Bench(preset, device, Amount(10, 6, 96) if on_gpu else Amount(3, 2, 12))
    parts = dict[str, Any]()
    with torch.inference_mode():
        report = {"preset": preset, "date": time.strftime("%Y-%m-%d"), "setting": asdict(bench.pair().info)}
        for name, part in parts_of(preset, "float32" if on_gpu else "bfloat16").items():
            skipped = {"found": None, "error": "skipped: over the budget", "seconds": 0.0}
            parts[name] = one = run_part(part, bench) if time.perf_counter() - started < budget else skipped
            show(f"{one['seconds']:.1f} s, {line_of(name, one['error'] or one['found'])}")
            write_json(out, report | {"parts": parts, "goals": list(goals(parts))})
    for goal in goals(parts):
        show(f"{'reached' if goal['reached'] else 'MISSED'}: {goal['goal']} {goal['value']:.3g} ({goal['bound']})")
    return int(any(part["error"] for part in parts.values()))


if __name__ == "__main__":
    run_command(main)
