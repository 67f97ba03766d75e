"""What is published with each family: tokens, processor, chat template."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

FamilyName = Literal[
    "llava_onevision", "internvl", "idefics3", "smolvlm", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "gemma3",
    "qwen3_vl_moe",
]
TokensName = FamilyName | Literal["mistral"]
FAMILIES: tuple[FamilyName, ...] = get_args(FamilyName)
WORDS = 320  # pieces of the vocabulary: 256 bytes and what is learnt from a text
CONTEXT = 2048
QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
QWEN_VL = (*QWEN, "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>")
QWENS: tuple[FamilyName, ...] = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
QWEN3S: tuple[FamilyName, ...] = QWENS[2:]
ROWS = tuple(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7))


@dataclass(frozen=True)
class Kind:
    """What is published with a family: tokens, processor, template."""

    first: tuple[str, ...]  # special tokens in front of the words
    last: tuple[str, ...]  # and behind them
    image: str
    bos: str | None
    eos: str
    tokenizer: str
    processor: str
    image_processor: str
    template: str
    named: tuple[tuple[str, str], ...] = ()  # special tokens that the tokenizer knows by a name


PARTS = (
    "{% for content in message['content'] %}{% if content['type'] == 'image' %}IMAGE"
    "{% else %}{{ content['text'] }}{% endif %}{% endfor %}"
)
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n" + PARTS + "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TURNS = (
    "{% for message in messages %}{{ message['role'] | capitalize }}{% if message['content'][0]['type'] == 'image' %}"
    "{{ ':' }}{% else %}{{ ': ' }}{% endif %}" + PARTS.replace("IMAGE", "<image>") + "<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
MODEL = (
    "{{ bos_token }}{% for message in messages %}<start_of_turn>"
    "{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n"
    + PARTS.replace("IMAGE", "<start_of_image>")
    + "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
VISION = CHATML.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>")
ASSISTANT = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
)
KINDS: dict[TokensName, Kind] = {
    "llava_onevision": Kind(
        (), (*QWEN, "<image>", "<video>"), "<image>", None, "<|im_end|>", "Qwen2Tokenizer", "LlavaOnevisionProcessor",
        "LlavaOnevisionImageProcessor", CHATML.replace("IMAGE", "<image>\n"),
    ),
    "internvl": Kind(
        (), (*QWEN, "<img>", "</img>", "<IMG_CONTEXT>", "<video>"), "<IMG_CONTEXT>", None, "<|im_end|>",
        "Qwen2Tokenizer", "InternVLProcessor", "GotOcr2ImageProcessorFast", CHATML.replace("IMAGE", "<IMG_CONTEXT>\n"),
        (("start_image_token", "<img>"), ("end_image_token", "</img>"), ("context_image_token", "<IMG_CONTEXT>"),
         ("video_token", "<video>")),
    ),
    "mistral": Kind(  # of language models alone
        ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "<pad>"), (), "", "<s>", "</s>", "LlamaTokenizerFast", "", "", ""
    ),
    "idefics3": Kind(
        (), ("<|begin_of_text|>", "<|end_of_text|>", "<fake_token_around_image>", "<image>", "<end_of_utterance>"),
        "<image>", "<|begin_of_text|>", "<end_of_utterance>", "PreTrainedTokenizerFast", "Idefics3Processor",
        "Idefics3ImageProcessor", "{{ bos_token }}" + TURNS,
    ),
    "smolvlm": Kind(
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        ("<global-img>", *ROWS, "<fake_token_around_image>", "<image>", "<end_of_utterance>"), "<image>",
        "<|im_start|>", "<end_of_utterance>", "GPT2Tokenizer", "SmolVLMProcessor", "SmolVLMImageProcessor",
        "<|im_start|>" + TURNS,
    ),
    "qwen2_vl": Kind(
        (), QWEN_VL, "<|image_pad|>", None, "<|im_end|>", "Qwen2Tokenizer", "Qwen2VLProcessor", "Qwen2VLImageProcessor",
        ASSISTANT + VISION,
    ),
    "qwen2_5_vl": Kind(
        (), QWEN_VL, "<|image_pad|>", None, "<|im_end|>", "Qwen2Tokenizer", "Qwen2_5_VLProcessor",
        "Qwen2VLImageProcessor", ASSISTANT + VISION,
    ),
    "qwen3_vl": Kind(
        (), QWEN_VL, "<|image_pad|>", None, "<|im_end|>", "Qwen2Tokenizer", "Qwen3VLProcessor",
        "Qwen2VLImageProcessorFast", VISION,
    ),
    "qwen3_vl_moe": Kind(
        (), QWEN_VL, "<|image_pad|>", None, "<|im_end|>", "Qwen2Tokenizer", "Qwen3VLProcessor",
        "Qwen2VLImageProcessorFast", VISION,
    ),
    "gemma3": Kind(
        ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>"),
        ("<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>", "<image_soft_token>"),
        "<image_soft_token>", "<bos>", "<end_of_turn>", "GemmaTokenizer", "Gemma3Processor", "Gemma3ImageProcessor",
        MODEL,
        (("boi_token", "<start_of_image>"), ("eoi_token", "<end_of_image>"), ("image_token", "<image_soft_token>")),
    ),
}  # fmt: skip


# Fields of a processor's files of which each decides slots or pixels.
QWEN_AGREEMENTS = ("patch_size", "temporal_patch_size", "merge_size")
AGREEMENTS: dict[FamilyName, tuple[str, ...]] = {
    "llava_onevision": ("num_image_tokens", "size"),
    "internvl": ("image_seq_length", "size"),
    "idefics3": ("image_seq_len", "max_image_size"),
    "smolvlm": ("image_seq_len", "max_image_size"),
    "gemma3": ("image_seq_length", "size"),
}


@cache
def token_ids(family: TokensName) -> dict[str, int]:
    """Ids of the special tokens."""
    kind = KINDS[family]
    behind = len(kind.first) + WORDS
    return {token: number for number, token in enumerate(kind.first)} | {
        token: behind + number for number, token in enumerate(kind.last)
    }
