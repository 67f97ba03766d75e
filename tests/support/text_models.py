"""Small random language models, laid out on disk as published ones are: decoder, tokens, chat template over texts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

from support.checkpoints import write
from support.families import randomise, resemble, write_tokenizer
from support.family_configs import Layout, text_fields
from support.family_kinds import KINDS, TokensName, token_ids
from support.models import seeded

TextName = Literal["llama", "mistral", "qwen2", "qwen3", "gemma3_text", "phi3"]
TEXTS: tuple[TextName, ...] = get_args(TextName)


@dataclass(frozen=True)
class TextKind:
    """What is published with a family.

    Args:
        tokens: whose special tokens it has.
        template: over messages whose contents are texts.
        fields: of the configuration, beside the sizes.
    """

    tokens: TokensName
    template: str
    fields: tuple[tuple[str, Any], ...] = ()


CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] + ': ' + message['content'] | trim"
    " + '<end_of_utterance>' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
INST = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% else %}{{ message['content'] + eos_token }}{% endif %}"
    "{% endfor %}"
)
GEMMA = (  # whose content may be a text or a list of parts
    "{{ bos_token }}{% for message in messages %}{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else"
    " message['role']) + '\n' }}{% if message['content'] is string %}{{ message['content'] | trim }}{% endif %}"
    "{{ '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
PHI3 = (  # which writes no beginning, though the tokenizer has one
    "{% for message in messages %}{{ message['role'] + '\n' + message['content'] + '</s>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant\n' }}{% endif %}"
)
TEXT_KINDS: dict[TextName, TextKind] = {
    "llama": TextKind("idefics3", LLAMA3),
    "mistral": TextKind("mistral", INST, (("sliding_window", 12),)),
    "qwen2": TextKind("qwen2_vl", CHATML),
    "qwen3": TextKind("qwen3_vl", CHATML),
    "gemma3_text": TextKind("gemma3", GEMMA),
    "phi3": TextKind("mistral", PHI3, (("sliding_window", 12), ("pad_token_id", 2))),
}


def write_text_model(
    directory: Path,
    name: TextName,
    seed: int = 0,
    layout: Layout | None = None,
    near: Path | None = None,
    noise: float = 0.03,
) -> Path:
    """A random checkpoint in float16.

    Args:
        near: a checkpoint that this one resembles, up to ``noise``.
    """
    layout, kind = layout or Layout(), TEXT_KINDS[name]
    directory.mkdir(parents=True)
    fields = text_fields(kind.tokens, layout) | {"model_type": name, "torch_dtype": "float16"} | dict(kind.fields)
    if name in ("qwen2", "qwen3"):
        fields["rope_scaling"] = None
    ids = token_ids(kind.tokens)
    fields |= {"eos_token_id": ids[KINDS[kind.tokens].eos], "bos_token_id": ids.get(KINDS[kind.tokens].bos or "")}
    write(directory / "config.json", fields)
    config = AutoConfig.from_pretrained(directory)
    model = seeded(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], config, seed)
    randomise(model, kind.tokens, seed)
    if near is not None:
        resemble(model, near, noise, seed)
    model.half().save_pretrained(directory, max_shard_size="100KB")
    write(directory / "config.json", fields)
    write(directory / "generation_config.json", {"eos_token_id": fields["eos_token_id"]})
    write_tokenizer(directory, kind.tokens)
    (directory / "chat_template.jinja").write_text(kind.template, encoding="utf-8")
    return directory
