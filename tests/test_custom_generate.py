"""``model.generate(custom_generate=speculative_generate)``: what comes out is ``model.generate`` without it."""

from __future__ import annotations

import gc
import os
import re
import weakref
from collections import Counter
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from typing import Any

import pytest
import torch
from support import checkpoints, families, family_proofs, models
from support.amount import sample
from support.family_configs import Layout
from support.family_drafts import write_draft, write_target
from support.family_kinds import FAMILIES
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel, StopStringCriteria, TextIteratorStreamer
from transformers.generation import EosTokenCriteria, LogitsProcessorList, MinLengthLogitsProcessor

from specllava import DecodeTrace, speculative_generate
from specllava.cli.main import main
from specllava.core.config import RULES
from specllava.custom_generate import PAIRS
from specllava.pair import Pair
from specllava.verification.answer_settings import warpers

ROOT = Path(__file__).resolve().parents[1]
RUNS = int(os.environ.get("SPECLLAVA_GENERATE_RUNS", "300"))  # of all families together
ALL = (*checkpoints.FAMILIES, *FAMILIES)
KINDS = ("vlm", "eagle", "eagle3", "own", None)  # of drafts; the last is prompt lookup
SMALL = {"depth": 3, "nodes": 6, "width": 2, "min_log_prob": -50.0, "entropy_threshold": 1.0}
PENALTIES = (
    {}, {"repetition_penalty": 1.3}, {"no_repeat_ngram_size": 2, "min_new_tokens": 4}, {"suppress_tokens": [9]},
)  # fmt: skip
OTHER = Layout(vision=16, side=36, patch=6, padding=8)  # cuts pictures in other ways


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str | None], Path]:
    """A checkpoint by family and kind of draft; the target without one."""
    root = tmp_path_factory.mktemp("generate")

    @cache
    def write(family: Any, kind: str | None = None) -> Path:
        if kind is None:
            return write_target(root / family, family)
        at = root / f"{family} {kind}"
        if kind != "own":
            return write_draft(at, family, kind, write(family))
        if family in checkpoints.FAMILIES:
            near = checkpoints.noisy(checkpoints.weights_of(write(family)), 0.01)
            return checkpoints.write_llava(at, family, 1, parts=near)
        return families.write_checkpoint(at, family, 1, OTHER, write(family), noise=0.005)

    return write


@pytest.fixture(scope="module")
def loaded(made) -> Callable[[str], Pair]:
    """A target with its processor, as any caller of transformers has them."""
    return cache(lambda family: Pair.load(made(family), device="cpu", dtype="float32"))


@pytest.fixture
def llava(loaded) -> Pair:
    return loaded("llava")


def new_tokens(model: PreTrainedModel, inputs: dict[str, Any], **options: Any) -> list[int]:
    """Answer of at most 8 tokens."""
    out = model.generate(**inputs, **({"do_sample": False, "max_new_tokens": 8} | options))
    return out[0, inputs["input_ids"].shape[1] :].tolist()


def speculated(model: PreTrainedModel, inputs: dict[str, Any], draft: Any, **options: Any) -> list[int]:
    return new_tokens(model, inputs, custom_generate=speculative_generate, draft=draft, **(SMALL | options))


@pytest.mark.parametrize("family", sample(ALL, 2))
def test_tokens_are_those_of_generate(made, loaded, family: str):
    """None, one and three pictures, and pictures in two turns; every rule, every kind of draft, penalties."""
    pair, saved = loaded(family), 0
    drafts = [None if kind is None else pair.with_draft(made(family, kind)) for kind in KINDS]
    for number in range(-(-RUNS // len(ALL))):
        inputs = family_proofs.own_inputs(pair, number % 10)
        turn = number + number // 5
        kind, drafted = KINDS[turn % len(KINDS)], drafts[turn % len(KINDS)]
        options: dict[str, Any] = {"rule": RULES[number % len(RULES)]} | PENALTIES[number // 2 % len(PENALTIES)]
        wanted = new_tokens(pair.target, inputs, **PENALTIES[number // 2 % len(PENALTIES)])
        if kind is None:
            options = options | {"drafter": "prompt-lookup"}
        if kind == "own" and "pixel_values" in inputs and family in FAMILIES:  # the LLaVAs' cut pictures alike
            options["draft_inputs"] = drafted_inputs(drafted, number % 10)
        draft = made(family, kind) if kind and number % 2 else drafted and drafted.draft
        out = pair.target.generate(
            **inputs, do_sample=False, max_new_tokens=8, return_dict_in_generate=True, draft=draft,
            custom_generate=speculative_generate, **SMALL | options,
        )  # fmt: skip
        assert out.sequences[0].tolist() == [*inputs["input_ids"][0].tolist(), *wanted], (number, kind, options)
        assert isinstance(out.trace, DecodeTrace) and list(out.trace.token_ids) == wanted
        saved += len(wanted) - 1 - len(out.trace.steps)
    assert saved > 0


def drafted_inputs(drafted: Pair, number: int) -> dict[str, Any]:
    """What the draft's own processor makes of a chat."""
    reader = Pair("draft", drafted.target, None, drafted.draft_processor, "draft", "none")
    return family_proofs.own_inputs(reader, number)


def test_a_draft_of_words_alone_and_one_that_cuts_pictures_alike(made, loaded, llava, tmp_path):
    inputs = family_proofs.own_inputs(llava, 3)
    words = checkpoints.write_llama(tmp_path / "words")
    text_only = tmp_path / "text"
    assert main(["draft", "init", "--llm", str(words), "--target", str(made("llava")), "--output", str(text_only),
                 "--text-only"]) == 0  # fmt: skip
    wanted = new_tokens(llava.target, inputs)
    for draft in (text_only, AutoModelForCausalLM.from_pretrained(text_only, dtype=torch.float32), llava.target):
        assert speculated(llava.target, inputs, draft) == wanted


def test_a_draft_that_cuts_pictures_in_other_ways_asks_for_its_inputs(made, loaded):
    pair = loaded("gemma3")
    inputs = family_proofs.own_inputs(pair, 1)
    with pytest.raises(ValueError, match=r"with size 36, these were made with \d+: give draft_inputs="):
        speculated(pair.target, inputs, made("gemma3", "own"))


def test_sampled_answers_have_the_distribution_of_generate(llava, made):
    """The chances of all answers of two tokens, by the target's own logits; a fixed seed repeats an answer."""
    inputs, count = family_proofs.own_inputs(llava, 1), 150
    options = {"do_sample": True, "max_new_tokens": 2, "temperature": 1.5, "top_k": 3, "top_p": 0.95}
    heat, chances = warpers(1.5, 0.95, 3), dict[tuple[int, ...], float]()
    after = {(): 1.0}
    for _ in range(2):
        for path, chance in list(after.items()):
            ids = torch.cat([inputs["input_ids"], torch.tensor([path], dtype=torch.long)], 1)
            with torch.inference_mode():
                logits = llava.target(input_ids=ids, pixel_values=inputs["pixel_values"]).logits[:, -1]
            probs = heat(ids, logits).softmax(-1)[0]
            del after[path]
            after |= {(*path, token): chance * float(probs[token]) for token in probs.nonzero()[:, 0].tolist()}
    chances = after
    assert 4 < len(chances) < 10
    torch.manual_seed(3)
    drawn = Counter(tuple(speculated(llava.target, inputs, made("llava", "own"), **options)) for _ in range(count))
    assert set(drawn) <= set(chances)
    chi_square = sum((drawn[path] - count * chance) ** 2 / (count * chance) for path, chance in chances.items())
    assert chi_square < 30, (drawn, chances)  # 8 degrees of freedom: 1 in 5000
    seeded = [speculated(llava.target, inputs, made("llava", "own"), **options, seed=5) for _ in range(2)]
    assert seeded[0] == seeded[1]
    assert speculated(llava.target, inputs, None, **options, drafter="none", seed=5) == seeded[0]


def test_stop_tokens_and_stop_strings_end_an_answer(llava, made):
    inputs = family_proofs.own_inputs(llava, 1)
    whole = new_tokens(llava.target, inputs)
    ends = {"eos_token_id": [whole[3], 2]}
    assert speculated(llava.target, inputs, made("llava", "own"), **ends) == new_tokens(llava.target, inputs, **ends)
    tokenizer = llava.processor.tokenizer
    stopped = {"stopping_criteria": [StopStringCriteria(tokenizer, [tokenizer.decode(whole[2:4])])]}
    wanted = new_tokens(llava.target, inputs, **stopped)
    assert wanted == whole[:4]
    assert speculated(llava.target, inputs, made("llava", "own"), **stopped) == wanted


def test_a_streamer_is_fed(llava, made):
    """transformers 5.23 drops it on the way to a callable; one that is not ended would be waited for forever."""
    inputs, tokenizer = family_proofs.own_inputs(llava, 1), llava.processor.tokenizer
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=10)
    said = speculated(llava.target, inputs, made("llava", "own"), streamer=streamer)
    assert "".join(streamer) == tokenizer.decode(said) != ""


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"num_beams": 2}, "num_beams = 2"),
        ({"num_return_sequences": 2, "do_sample": True}, "num_return_sequences = 2"),
        ({"penalty_alpha": 0.6, "top_k": 4}, "penalty_alpha = 0.6"),
        ({"guidance_scale": 2.0}, "guidance_scale = 2.0"),
        ({"max_time": 9.0}, "max_time = 9.0"),
        ({"output_scores": True}, "output_scores = True"),
        ({"output_hidden_states": True}, "output_hidden_states = True"),
        ({"prompt_lookup_num_tokens": 4}, "prompt_lookup_num_tokens = 4"),
        ({"logits_processor": LogitsProcessorList([MinLengthLogitsProcessor(2, 3)])}, "logits_processor"),
        ({"stopping_criteria": [EosTokenCriteria(3)]}, "a EosTokenCriteria"),
        ({"prefix_allowed_tokens_fn": lambda row, ids: [1, 2]}, "prefix_allowed_tokens_fn"),
        ({"past_key_values": DynamicCache()}, "past_key_values"),
        ({"position_ids": "positions"}, "position_ids"),
        ({"assistant_model": "model"}, "assistant_model"),
    ],
    ids=lambda value: value.split(" = ")[0] if isinstance(value, str) else "",
)
def test_what_the_loop_does_not_do_is_refused_by_name(llava, made, asked: dict[str, Any], named: str):
    inputs = family_proofs.own_inputs(llava, 0)
    real = {"positions": torch.arange(inputs["input_ids"].shape[1])[None], "model": llava.target}
    asked = {name: real.get(value, value) if isinstance(value, str) else value for name, value in asked.items()}
    line = f"speculative_generate does not follow {named}: leave it out, or leave custom_generate out"
    with pytest.raises(ValueError, match=f"^{re.escape(line)}$"):
        speculated(llava.target, inputs, made("llava", "own"), **asked)


def test_other_input_that_is_refused(llava, made, tmp_path):
    inputs, draft = family_proofs.own_inputs(llava, 1), made("llava", "own")
    ids, twice = inputs["input_ids"], {name: torch.cat([one, one]) for name, one in inputs.items()}
    text = {"input_ids": ids[:, -4:], "attention_mask": torch.tensor([[0, 1, 1, 1]])}
    other = models.draft("bad").float()
    cases: list[tuple[dict[str, Any], Any, dict[str, Any], str]] = [
        (twice, draft, {}, "answers one prompt at a time, not 2: call it for each"),
        (text, draft, {}, "reads no padding"),
        (inputs, None, {}, 'needs draft=, or drafter="prompt-lookup"'),
        (inputs, "nowhere", {}, "no model at nowhere"),
        (inputs, other, {}, "the draft has a vocabulary of 280 tokens, the model of 448"),
        (inputs, draft, {"rule": "bush"}, "rule = 'bush': input should be"),
        (inputs, draft, {"depth": 99}, "depth = 99: input should be less than or equal to"),
        (inputs, made("llava", "eagle"), {"draft_inputs": inputs}, "draft_inputs has no use"),
        (inputs, draft, {"max_new_tokens": 2000}, "do not fit the context of 1024"),
        (inputs | {"pixel_values": None, "pixel_values_videos": torch.zeros(1, 2, 3, 28, 28)}, draft, {},
         "reads no videos: give the processor the frames as images"),
    ]  # fmt: skip
    for given, draft_, options, named in cases:
        with pytest.raises(ValueError, match=re.escape(named)) as refused:
            speculated(llava.target, given, draft_, **options)
        assert "\n" not in str(refused.value)


def test_what_was_loaded_is_kept_while_the_model_lives(made):
    """And no longer: the pair holds the model's modules, and not the model."""
    model = Pair.load(made("llava_next"), device="cpu", dtype="float32").target
    gc.collect()
    inputs = {"input_ids": torch.tensor([[1, 5, 9]])}
    settings = model.generation_config.to_dict()
    for _ in range(2):
        speculated(model, inputs, made("llava_next", "own"), eos_token_id=[])
        speculated(model, inputs, made("llava_next", "eagle"), drafter="model")
    held = PAIRS[model]
    assert len(held) == 3 and model.generation_config.to_dict() == settings
    parts = [weakref.ref(model), *(weakref.ref(pair.draft) for pair in held.values() if pair.draft is not None)]
    del model, held
    gc.collect()
    assert [part() for part in parts] == [None] * 3


def test_a_folder_of_the_hub_is_written_and_loaded_by_transformers(made, llava, tmp_path, monkeypatch):
    """With its own loader, which checks that the package is installed."""
    package = tmp_path / "site" / "specllava-0.1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: specllava\nVersion: 0.1.0\n")
    monkeypatch.syspath_prepend(package.parent)
    folder = tmp_path / "tree-speculation"
    command = ["custom-generate", "--output", str(folder)]
    assert main(command) == 0
    assert main(command) == 1, "an existing directory is kept"
    inputs, tokenizer = family_proofs.own_inputs(llava, 3), llava.processor.tokenizer
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=10)
    said = new_tokens(
        llava.target, inputs, custom_generate=str(folder), trust_remote_code=True, draft=str(made("llava", "own")),
        rule="topk", nodes=5, streamer=streamer,
    )  # fmt: skip
    assert said == new_tokens(llava.target, inputs) and "".join(streamer) == tokenizer.decode(said)
    with pytest.raises(ValueError, match="does not follow num_beams = 2"):
        new_tokens(llava.target, inputs, custom_generate=str(folder), trust_remote_code=True, num_beams=2)


def test_the_guide_runs_as_printed_and_the_assistant_of_transformers_is_still_blind(monkeypatch):
    """Mended where it is wrong, it needs the passes that it should need."""
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "transformers.md").read_text("utf-8"), re.DOTALL):
        assert len(block.strip().splitlines()) <= 20
        exec(block, names)
    model, assistant, inputs, passes = (names[name] for name in ("model", "assistant", "inputs", "passes"))
    ideal = -(-names["tokens"] // 6)
    blind = len(passes)
    assert len(names["fast"].trace.steps) < ideal + 1 < blind / 2, "if this fails, mend docs/transformers.md"
    real = assistant.prepare_inputs_for_generation

    @wraps(real)
    def seeing(*given: Any, **named: Any) -> Any:
        return real(*given, **named | {"is_first_iteration": not named["past_key_values"].get_seq_length()})

    monkeypatch.setattr(assistant, "prepare_inputs_for_generation", seeing)
    passes.clear()
    again = model.generate(**inputs, do_sample=False, max_new_tokens=60, assistant_model=assistant)
    assert torch.equal(again, names["plain"]) and len(passes) <= ideal + 1
