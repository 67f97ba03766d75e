"""A tiny stand-in for SmolLM2, with its special tokens and template, and random sight for it or for the real one."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, LlavaForConditionalGeneration, PreTrainedTokenizerFast

from recipes.smol.checkpoint import SETTINGS, WEIGHTS, llava_config, smol_processor

# As in SmolLM2's tokenizer_config.json.
TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<unused {n}>" for n in range(3, 16)), "<empty_output>")
CHATS = (
    [{"role": "user", "content": "Why is the sky blue?"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "12 + 345 =\n\n1. a  2 ?"}],
    [
        {"role": "user", "content": "Say it in Chinese."},
        {"role": "assistant", "content": "你好 😀"},
        {"role": "user", "content": "And\tin  Greek?"},
    ],
)


def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer that splits digits off, as SmolLM2's does."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    made.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([TEMPLATE] * 2, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token=SPECIAL[1], eos_token=SPECIAL[2], pad_token=SPECIAL[2], chat_template=TEMPLATE
    )


def language_model(rows: int, seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=rows, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=1024, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2,
        pad_token_id=2, initializer_range=0.2,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def write_language_model(directory: Path) -> Path:
    words = tokenizer()
    language_model(len(words)).save_pretrained(directory)
    words.save_pretrained(directory)
    return directory


def write_sight(directory: Path, model: LlamaForCausalLM, words: PreTrainedTokenizerFast, adapted: bool) -> Path:
    """Write a random tower and projector, and if ``adapted`` random adapters of two modules."""
    torch.manual_seed(1)
    vision = {
        "model_type": "clip_vision_model", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 2, "image_size": 128, "patch_size": 16,
    }  # fmt: skip
    settings = {"vision_config": vision, "adapter_scale": 2.0}
    whole = LlavaForConditionalGeneration(llava_config(model, smol_processor(words, 128, 16), settings))
    parts = ("model.vision_tower.", "model.multi_modal_projector.")
    weights = {name: one.contiguous() for name, one in whole.state_dict().items() if name.startswith(parts)}
    for name in ("self_attn.q_proj", "mlp.down_proj") if adapted else ():
        path = f"model.language_model.layers.1.{name}"
        rows, columns = whole.get_submodule(path).weight.shape
        weights |= {f"{path}.lora_A": torch.randn(3, columns), f"{path}.lora_B": torch.randn(rows, 3)}
    directory.mkdir(parents=True)
    save_file(weights, directory / WEIGHTS)
    (directory / SETTINGS).write_text(json.dumps(settings), encoding="utf-8")
    return directory
