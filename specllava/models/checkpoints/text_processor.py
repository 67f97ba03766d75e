"""A tokenizer in a processor's place: a language model's chats have no pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torch import Tensor
from transformers import PreTrainedTokenizerBase

# FastChat's vicuna_v1.1, for checkpoints that bring no template, as Vicuna's do not.
VICUNA: Final = (
    "{% for message in messages %}{% if loop.first %}{% if message['role'] == 'system' %}{{ message['content'] }}"
    "{% else %}A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful,"
    " detailed, and polite answers to the user's questions.{% endif %}{% endif %}{% if message['role'] == 'user' %}"
    "{{ ' USER: ' + message['content'] }}{% elif message['role'] == 'assistant' %}"
    "{{ ' ASSISTANT: ' + message['content'] + eos_token }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ ' ASSISTANT:' }}{% endif %}"
)


@dataclass(frozen=True)
class TextProcessor:
    """What a processor is to a vision-language model, without pictures."""

    tokenizer: PreTrainedTokenizerBase

    @property
    def chat_template(self) -> Any:
        """The checkpoint's own template, or Vicuna's."""
        return self.tokenizer.chat_template or VICUNA

    def apply_chat_template(self, chat: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """Write a chat."""
        return str(self.tokenizer.apply_chat_template(list(chat), tokenize=False, **options))

    def __call__(self, images: None, text: str, return_tensors: str, **options: Any) -> Mapping[str, Tensor]:
        """Tokenise a written chat; only where the template is not the checkpoint's own does the tokenizer begin it."""
        if self.tokenizer.chat_template is not None:
            options["add_special_tokens"] = False
        read: Mapping[str, Tensor] = self.tokenizer([text], return_tensors=return_tensors, **options)
        return read

    def save_pretrained(self, directory: Path) -> None:
        """Write the tokenizer's files."""
        self.tokenizer.save_pretrained(directory)
