"""Assembling of the LLaVA checkpoint of the pair smol, from SmolLM2 and what ships in ``assets/smol``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, pre_tokenizers
from torch import Tensor
from transformers import (
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from recipes.toy.build import llava_processor
from specllava.models.tokens import IMAGE_MARKER

WEIGHTS, SETTINGS = "sight.safetensors", "sight.json"
UNUSED: Final = "<empty_output>"  # SmolLM2's special token of notebooks, in whose place the image token is
SIGHT: Final = ("model.vision_tower.", "model.multi_modal_projector.")
A, B = ".lora_A", ".lora_B"
# SmolLM2's own template (ChatML), which also takes contents of parts: <image>, newline for each picture, then the text.
CHAT_TEMPLATE: Final = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] if part['type'] == 'image' %}{{ '<image>\n' }}{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}"
    "{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def smol_processor(
    tokenizer: PreTrainedTokenizerBase, image_size: int, patch_size: int, context: int = 8192
) -> LlavaProcessor:
    """Build the processor: SmolLM2's tokenizer, its chat template, square pictures.

    The unused special token is renamed to ``<image>``: ids and embeddings stay. Digits are split off first, as in
    SmolLM2's own tokenizer.json; a GGUF file names no such rule.

    Args:
        image_size, patch_size: in pixels.
        context: tokens that the model holds.

    Raises:
        ValueError: the tokenizer is not SmolLM2's.
    """
    read = json.loads(tokenizer.backend_tokenizer.to_str())
    words = read["model"]["vocab"]
    if UNUSED in words:
        words[IMAGE_MARKER] = words.pop(UNUSED)
    for added in read["added_tokens"]:
        if added["content"] == UNUSED:
            added["content"] = IMAGE_MARKER
    if IMAGE_MARKER not in {added["content"] for added in read["added_tokens"] if added["special"]}:
        raise ValueError(f"the tokenizer has no special token {UNUSED}, whose place the image token takes")
    backend = Tokenizer.from_str(json.dumps(read))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    renamed = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        extra_special_tokens={"image_token": IMAGE_MARKER},
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )
    return llava_processor(renamed, image_size, patch_size, CHAT_TEMPLATE)


def llava_config(
    language_model: LlamaForCausalLM, processor: LlavaProcessor, settings: Mapping[str, Any]
) -> LlavaConfig:
    """Return the configuration of the checkpoint.

    Args:
        settings: of ``sight.json``, with the tower's ``vision_config``.
    """
    vision, text = settings["vision_config"], language_model.config.to_dict()
    return LlavaConfig(
        vision_config=vision,
        text_config={name: value for name, value in text.items() if name != "dtype" and not name.startswith("_")},
        image_token_index=processor.tokenizer.convert_tokens_to_ids(IMAGE_MARKER),
        image_seq_length=(vision["image_size"] // vision["patch_size"]) ** 2,
        projector_hidden_act="gelu",
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
        tie_word_embeddings=language_model.config.tie_word_embeddings,
    )


@torch.no_grad()
def assemble(language_model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, sight: Path, output: Path) -> None:
    """Write the checkpoint in bfloat16: the language model with merged adapters, the tower and the projector.

    Args:
        sight: directory of ``sight.json`` (``vision_config``, ``adapter_scale``) and ``sight.safetensors``. The latter
            has LLaVA's own names, ``model.vision_tower.…`` and ``model.multi_modal_projector.…``. Low-rank adapters
            are ``NAME.lora_A`` ``[rank, in]`` and ``NAME.lora_B`` ``[out, rank]`` for a module ``NAME``, such as
            ``model.language_model.layers.0.self_attn.q_proj``.
        output: directory to write.

    Raises:
        ValueError: weights that are missing or do not fit, by name.
        OSError: a file that cannot be read or written.
    """
    settings = json.loads((sight / SETTINGS).read_text(encoding="utf-8"))
    shipped = load_file(sight / WEIGHTS)
    vision = settings["vision_config"]
    context = language_model.config.max_position_embeddings
    processor = smol_processor(tokenizer, vision["image_size"], vision["patch_size"], context)
    model = LlavaForConditionalGeneration(llava_config(language_model, processor, settings)).float()
    model.model.language_model.load_state_dict(language_model.model.state_dict())
    model.lm_head.load_state_dict(language_model.lm_head.state_dict())
    if wrong := _misfits(model, shipped):
        raise ValueError(f"{sight / WEIGHTS} does not fit: {len(wrong)} weights, such as {wrong[0]}")
    model.load_state_dict({name: one for name, one in shipped.items() if not name.endswith((A, B))}, strict=False)
    for name in (one.removesuffix(A) for one in shipped if one.endswith(A)):
        update = shipped[name + B].float() @ shipped[name + A].float()
        model.get_submodule(name).weight.add_(update, alpha=settings.get("adapter_scale", 1.0))
    model.bfloat16().save_pretrained(output)
    processor.save_pretrained(output)


def _misfits(model: LlavaForConditionalGeneration, shipped: Mapping[str, Tensor]) -> list[str]:
    """Return the names of weights that are missing, unknown or of another shape than the model's."""
    shapes = {name: one.shape for name, one in model.state_dict().items()}
    wrong = {name for name in shapes if name.startswith(SIGHT)} - shipped.keys()
    for name, one in shipped.items():
        if not name.endswith((A, B)):
            fits = shapes.get(name) == one.shape
        else:
            module = name[: -len(A)]
            inner, outer = (tuple(shipped.get(module + end, one[:0]).shape) for end in (A, B))
            fits = inner[:1] == outer[1:] and shapes.get(f"{module}.weight") == outer[:1] + inner[1:]
        if not fits:
            wrong.add(name)
    return sorted(wrong)
