"""Does any drafter ever change a token? Random targets with drafts of every format.

    python -m benchmarks.identity --runs 3000 --json benchmarks/results/identity.json
    python -m benchmarks.identity --runs 1000 --settings --json benchmarks/results/identity_settings.json

An existing file is continued, so a long count may be interrupted. Every seed has targets, drafts and cases of its
own. The drafts are made so that they agree with their target now and then. Otherwise nothing would be accepted, and no
true state would ever replace a guessed one. Drawn guesses change tokens, though not their distribution, which
``tests/test_formats.py`` checks. Here all are best guesses, of greedy and of sampled answers.

With ``--settings`` every target has its own ``generation_config.json``, drawn anew for each run. Greedy answers of the
target alone are then compared with ``generate`` of transformers.
"""

from __future__ import annotations

import copy
import itertools
import json as json_format
import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import torch
from rich.console import Console
from torch import Tensor
from tqdm.auto import tqdm
from transformers import LlamaConfig, LlavaForConditionalGeneration
from transformers.utils import logging

from benchmarks.shared.command import run_command
from benchmarks.shared.random_pair import processor_of, size_of
from benchmarks.shared.random_settings import random_settings
from recipes.toy.draw import draw_scene
from recipes.toy.scene import sample_scene
from specllava.cli.options import check_outputs, write_json
from specllava.config import RULES, DecodingConfig
from specllava.metrics import compare, summarise
from specllava.models.drafts.draft_vlm import DraftLlava, fuse
from specllava.models.drafts.eagle import FeatureDraft, FeatureDraftConfig
from specllava.pair import Pair
from specllava.prompt import Prompt, to_device
from specllava.spec_decode.loop import Lane
from specllava.trace import NO_DRAFT, DecodeTrace

FORMATS: dict[str, dict[str, Any]] = {
    "eagle": {},
    "eagle, input norm": {"input_norm": True},
    "eagle, pruned": {"input_norm": True, "compressor": {"kind": "prune", "prune_ratio": 4}},
    "eagle, resampled": {"input_norm": True, "compressor": {"kind": "resampler"}},
    "eagle, gated": {"input_norm": True, "compressor": {"kind": "gate", "prune_ratio": 2, "pool_ratio": 4}},
    "msd": {"format": "msd"},
    "vispec": {"format": "vispec"},
    "eagle3": {"format": "eagle3", "state_layers": [1, 2, 3]},
    "eagle3, 200 tokens": {"format": "eagle3", "state_layers": [1, 2, 3], "draft_vocab_size": 200},
    "speculators": {"format": "eagle3", "state_layers": [0, 1, 2], "norm_before_residual": True},
    "speculators, normed output": {"format": "eagle3", "state_layers": [1, 2, 3], "norm_output": True},
}
DRAFT_VLM, LOOKUP = "draft VLM", "prompt lookup"
DRAFTERS = (*FORMATS, DRAFT_VLM, LOOKUP)
TARGETS, LAYERS = 4, 3  # targets of one seed
SAVED_EVERY = 250  # runs
NOISE = 0.3  # on the weights of a draft VLM, which are else its target's, as a share of their spread
CALM, LOUD, FAINT = 0.01, 4.0, 0.05  # of a target's layers, of an embedding in a draft, of what a draft's layer adds
QUESTIONS = ("What is this?", "Describe the picture.", "How many?", "Where does it stand, and on what?")
COUNTED = ("runs", "sampled", "tokens", "target_passes", "accepted", "mismatches", "ties")
LONGEST: Final = 24  # tokens of an answer
GENERATED: Final = ("generated", "unlike_generate")  # greedy answers of ``generate``, and those that differ from them

Rows = dict[str, dict[str, int]]  # by drafter, what is COUNTED


@dataclass(frozen=True, slots=True)
class Case:
    """One run: a pair, a prompt and how it is decoded.

    Args:
        settings: of the target's ``generation_config.json``, as JSON.
    """

    target: int
    format: str
    picture: int | None
    question: str
    config: DecodingConfig
    settings: str = "{}"

    @property
    def alone(self) -> Case:
        """The same prompt by the target alone."""
        kept = {name: getattr(self.config, name) for name in ("temperature", "seed", "max_new_tokens")}
        return replace(self, format=NO_DRAFT, config=DecodingConfig(drafter="none", **kept))


def cases(runs: int, seed: int = 0, settings: bool = False) -> Iterator[Case]:
    """Draw cases; drafters, rules, greedy and sampled answers take turns.

    Args:
        settings: draw those of a ``generation_config.json`` too.
    """
    rng, asked = random.Random(f"identity {seed}"), random.Random(f"settings {seed}")
    vocabulary = size_of("toy").target.vocab_size
    for number in range(runs):
        case = Case(
            target=TARGETS * seed + rng.randrange(TARGETS),
            format=DRAFTERS[number % len(DRAFTERS)],
            picture=rng.choice((None, *range(6))),
            question=rng.choice(QUESTIONS),
            config=DecodingConfig(
                drafter="prompt-lookup" if number % len(DRAFTERS) == DRAFTERS.index(LOOKUP) else "model",
                rule=RULES[number // len(DRAFTERS) % len(RULES)],
                temperature=rng.choice((0.0, 0.0, 0.8)),
                seed=rng.randrange(5),
                max_new_tokens=LONGEST,
                depth=rng.randint(1, 7),
                width=rng.randint(1, 5),
                nodes=rng.randint(1, 24),
                max_branches=rng.randint(1, 5),
                entropy_threshold=rng.uniform(0, 2),
                min_log_prob=rng.choice((-50.0, -8.0, -4.0)),
            ),
        )
        if settings:
            drawn = random_settings(asked, vocabulary, LONGEST, case.config.temperature > 0)
            case = replace(case, settings=json_format.dumps(drawn))
        yield case


class Runner:
    """Decoder of cases; targets, drafts and the answers of targets alone are made once."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self.alone = cache(self.run)
        self._target = cache(self._make_target)
        self.pair = cache(self._make_pair)

    def run(self, case: Case) -> DecodeTrace:
        """Decode a case."""
        pair, prompt = self._asked(case)
        return pair.run(Lane.of(case.config, prompt))

    @torch.inference_mode()
    def generated(self, case: Case) -> tuple[int, ...]:
        """Return the greedy answer of transformers' ``generate``."""
        pair, prompt = self._asked(case)
        whole = pair.target.generate(
            input_ids=prompt.input_ids,
            attention_mask=torch.ones_like(prompt.input_ids),
            **to_device(prompt.image_inputs, pair.target, prompt.input_ids.device),
            do_sample=False,
            max_new_tokens=case.config.max_new_tokens,
            tokenizer=pair.processor.tokenizer,
        )
        return tuple(whole[0, prompt.length :].tolist())

    def _asked(self, case: Case) -> tuple[Pair, Prompt]:
        """Return the pair with the settings of a case, and the prompt."""
        pair, prompt = self.pair(case.target, case.format), self.prompt(case)
        target = copy.copy(pair.target)  # it shares the weights
        target.generation_config = copy.deepcopy(pair.target.generation_config)
        target.generation_config.update(**json_format.loads(case.settings))
        return replace(pair, target=target), prompt

    def prompt(self, case: Case) -> Prompt:
        """Return the prompt of a case."""
        pair = self.pair(case.target, case.format)
        side = pair.target.config.vision_config.image_size
        shown = None if case.picture is None else draw_scene(sample_scene(case.picture, "train"), side)
        return pair.prompt(shown, case.question)

    def _make_target(self, seed: int) -> Pair:
        plain = size_of("toy")
        size = replace(plain, target=LlamaConfig(**plain.target.to_diff_dict() | {"num_hidden_layers": LAYERS}))
        processor, marker = processor_of(size)
        torch.manual_seed(seed)
        target = LlavaForConditionalGeneration(size.llava(size.target, marker)).to(self._dtype).eval()
        with torch.no_grad():
            for name, weight in target.named_parameters():
                if weight.dim() > 1:
                    adds = "language_model" in name and name.endswith(("o_proj.weight", "down_proj.weight"))
                    weight.normal_(0, 1.0 if name == "lm_head.weight" else 0.25 * (CALM if adds else 1.0))
            target.lm_head.weight[marker] = 0.0
        target.generation_config.eos_token_id = []
        return Pair(f"random {seed}", target, None, processor, f"random {seed}", NO_DRAFT)

    def _make_pair(self, seed: int, name: str) -> Pair:
        pair = self._target(seed)
        if name in (NO_DRAFT, LOOKUP):
            return pair
        if name == DRAFT_VLM:
            return replace(pair, draft=fuse(_draft_vlm(pair.target, seed)), draft_name=name)
        text = pair.target.config.text_config
        sizes = {key: getattr(text, key) for key in ("hidden_size", "intermediate_size", "vocab_size", "head_dim")}
        heads = dict.fromkeys(("num_attention_heads", "num_key_value_heads"), text.num_attention_heads)
        torch.manual_seed(seed)
        draft = FeatureDraft(FeatureDraftConfig(**sizes, **heads, **FORMATS[name])).to(self._dtype).eval()
        _agree(draft, pair.target)
        return replace(pair, draft=fuse(draft.bind(pair.target)), draft_name=name)


@torch.no_grad()
def _draft_vlm(target: LlavaForConditionalGeneration, seed: int) -> DraftLlava:
    """Make a draft VLM of the target's weights with noise on them."""
    draft: DraftLlava = DraftLlava(target.config).to(target.dtype).eval()
    own, source = target.state_dict(), torch.Generator().manual_seed(seed)
    draft.load_state_dict({name: own[name] for name in draft.state_dict()})
    for weight in draft.parameters():
        if weight.dim() > 1:
            weight += NOISE * weight.std() * torch.randn(weight.shape, generator=source, dtype=weight.dtype)
    return draft


@torch.no_grad()
def _agree(draft: FeatureDraft, target: LlavaForConditionalGeneration) -> None:
    """Let a draft guess a token's successor from its embedding, which decides most of what a calm target says."""
    for weight in draft.parameters():
        if weight.dim() > 1:
            weight.normal_(0, 0.25)
    width = draft.config.hidden_size
    layer: Any = draft.layers[0]
    passing = torch.cat([torch.eye(width), torch.zeros(width, width)], dim=1)
    layer.mlp.down_proj.weight *= FAINT
    draft.fc.weight *= FAINT
    if draft.config.format != "eagle3":
        draft.fc.weight += LOUD * passing
        layer.self_attn.o_proj.weight *= FAINT
        return
    for product in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
        product.weight.copy_(LOUD * passing)  # so that each entry attends to itself
    layer.self_attn.o_proj.weight.copy_(torch.eye(width))
    ids: Tensor = torch.randperm(draft.config.vocab_size)[: draft.lm_head.out_features].sort().values
    offsets: Any = draft.d2t
    offsets.copy_(ids - torch.arange(len(ids)))
    draft.lm_head.weight.copy_(target.lm_head.weight[ids])


def count(
    runs: int, dtype: torch.dtype, seed: int = 0, done: Rows | None = None, settings: bool = False
) -> Iterator[Rows]:
    """Run cases against the target alone; yield, by drafter, how many differ and how much was accepted, now and then.

    Args:
        runs: in all, those of ``done`` among them.
        done: rows of the first runs, which are not run again.
        settings: draw some for each run, and compare with ``generate`` too.
    """
    counted = (*COUNTED, *GENERATED) if settings else COUNTED
    rows = copy.deepcopy(done) if done else {name: dict.fromkeys(counted, 0) for name in DRAFTERS}
    first = sum(row["runs"] for row in rows.values())
    runner, left = Runner(dtype), itertools.islice(cases(runs, seed, settings), first, None)
    for number, case in enumerate(tqdm(left, total=runs, initial=first, disable=None), first + 1):
        trace, row = runner.run(case), rows[case.format]
        verdict, told = compare(runner.alone(case.alone), trace), summarise([trace])
        row["runs"] += 1
        row["sampled"] += case.config.temperature > 0
        row["tokens"] += told.tokens
        row["target_passes"] += told.target_passes
        row["accepted"] += told.accepted
        row["ties"] += not verdict.identical and verdict.near_tie
        row["mismatches"] += not verdict.identical and not verdict.near_tie
        if settings and case.config.temperature == 0:
            row["generated"] += 1
            row["unlike_generate"] += runner.generated(case.alone) != runner.alone(case.alone).token_ids
        if number % SAVED_EVERY == 0:
            yield rows
    yield rows


def main(
    runs: int = 3000,
    seeds: tuple[int, ...] = (0,),
    dtypes: tuple[Literal["float64", "float32"], ...] = ("float64",),
    settings: bool = False,
    json: Path | None = None,
) -> None:
    """Count differing answers.

    Args:
        runs: for each seed in each precision.
        seeds: of targets, drafts and cases.
        dtypes: precisions.
        settings: draw those of a generation_config.json for each run, and compare with generate too.
        json: write the rows to this file, and go on with those that it has.
    """
    check_outputs(json=json)
    torch.set_num_threads(1)  # of models so small, more are slower
    warnings.simplefilter("ignore")  # of settings that ask for more than there is room for
    logging.set_verbosity_error()
    found: dict[str, dict[str, Rows]] = json_format.loads(json.read_text()) if json and json.exists() else {}
    for dtype, seed in itertools.product(dtypes, seeds):
        own = found.setdefault(dtype, {})
        for rows in count(runs, getattr(torch, dtype), seed, own.get(str(seed)), settings):
            own[str(seed)] = rows
            write_json(json, found)
    for precision, by_seed in found.items():
        for name in DRAFTERS:
            keys = (*COUNTED, *GENERATED) if settings else COUNTED
            row = {key: sum(rows[name][key] for rows in by_seed.values()) for key in keys}
            Console().print(f"{precision} {name}: " + ", ".join(f"{key} {value:,}" for key, value in row.items()))


if __name__ == "__main__":
    run_command(main)
