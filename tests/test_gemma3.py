"""Gemma 3 beside what every family is held to: its window, its pictures, its crops and its scaled embeddings."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from PIL import Image
from support import families
from torch import Tensor

from specllava.config import DecodingConfig
from specllava.engine.engine import Engine, visible_in_prefill
from specllava.models.tokens import resize_vocabulary
from specllava.pair import Pair
from specllava.prompt import Prompt
from specllava.spec_decode.loop import Lane

ALONE = DecodingConfig(max_new_tokens=8, drafter="none")
WINDOW = 12  # of the checkpoint; every prompt with a picture is longer


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    made = families.write_checkpoint(tmp_path_factory.mktemp("gemma") / "gemma3", "gemma3")
    return Pair.load(made, device="cpu", dtype="float64")


def shown(pair: Pair, *sizes: tuple[int, int]) -> Prompt:
    parts = [{"type": "image", "image": noise(size, seed)} for seed, size in enumerate(sizes)]
    return pair.prompt(None, [{"role": "user", "content": [*parts, {"type": "text", "text": "What is this?"}]}])


def noise(size: tuple[int, int], seed: int) -> Image.Image:
    pixels = torch.randint(256, (size[1], size[0], 3), generator=torch.Generator().manual_seed(seed))
    return Image.fromarray(pixels.byte().numpy())


@torch.inference_mode()
def logits(pair: Pair, prompt: Prompt, types: Tensor | None) -> Tensor:
    """The model's own, after the prompt."""
    named = {} if types is None else {"token_type_ids": types}
    return pair.target(input_ids=prompt.input_ids, **prompt.image_inputs, **named, use_cache=False).logits[0, -1]


@torch.inference_mode()
def test_a_window_and_both_directions_matter_and_the_engine_has_both(pair: Pair):
    """Guards the proofs of the families: a picture lies beyond the window, and slots see those behind them."""
    prompt = shown(pair, (40, 30), (30, 40))
    marked = prompt.input_ids == pair.target.config.image_token_id
    assert prompt.length - int(marked[0].nonzero()[3]) > WINDOW == pair.target.config.text_config.sliding_window
    wanted = logits(pair, prompt, marked.int())
    read = Engine.of(pair.target, 200).prefill(prompt.input_ids, prompt.features, prompt.image_keys).logits
    torch.testing.assert_close(read, wanted, rtol=0, atol=1e-9)
    assert not torch.allclose(logits(pair, prompt, None), wanted, atol=1e-3)
    wide = replace(pair, target=copy.deepcopy(pair.target))
    wide.target.config.text_config.sliding_window = 500
    assert not torch.allclose(logits(wide, prompt, marked.int()), wanted, atol=1e-3)


@pytest.mark.parametrize("seed", range(8))
def test_slots_see_the_run_that_they_lie_in(seed: int):
    source = torch.Generator().manual_seed(seed)
    slots = torch.rand(17, generator=source).lt(0.6).numpy()
    start = int(torch.randint(17, (), generator=source))
    found = visible_in_prefill(slots, start)
    assert found.shape == (17 - start, 17)
    for token in range(start, 17):
        for column in range(17):
            between = slots[min(token, column) : max(token, column) + 1]
            assert found[token - start, column] == (column <= token or bool(between.all()))


@torch.inference_mode()
@pytest.mark.parametrize("size", [(40, 30), (90, 30), (20, 90)])
def test_where_the_processor_pans_and_scans_each_crop_is_read(pair: Pair, size: tuple[int, int]):
    """It is off unless the processor has it on; then a picture that is no square has slots for its crops."""
    scanning = replace(pair, processor=copy.copy(pair.processor))
    options = {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 8, "pan_and_scan_min_ratio_to_activate": 1.2}
    scanning.processor.images_kwargs = pair.processor.images_kwargs | options
    plain, prompt = shown(pair, size), shown(scanning, size)
    assert len(plain.image_keys) == 1 < len(prompt.image_keys) == len(prompt.image_inputs["pixel_values"])
    types = torch.eq(prompt.input_ids, pair.target.config.image_token_id).int()
    inputs = {**prompt.image_inputs, "input_ids": prompt.input_ids, "token_type_ids": types}
    wanted = pair.target.generate(**inputs, do_sample=False, max_new_tokens=8)[0, prompt.length :]
    assert pair.run(Lane("x", ALONE, prompt)).token_ids == tuple(wanted.tolist())


@torch.inference_mode()
@pytest.mark.parametrize("size", [330, 400])
def test_embeddings_stay_scaled_when_rows_are_cut_or_filled(pair: Pair, size: int):
    """A draft of another size lost the factor by which Gemma multiplies its embeddings, and guessed at random."""
    draft, words = copy.deepcopy(pair.target), torch.arange(330)
    before = pair.target.get_input_embeddings()(words)
    assert not torch.equal(before, pair.target.get_input_embeddings().weight[:330])
    resize_vocabulary(draft, "draft", 330, size)
    assert torch.equal(draft.get_input_embeddings()(words), before)
    assert draft.get_output_embeddings()(before[0]).shape == (size,)
