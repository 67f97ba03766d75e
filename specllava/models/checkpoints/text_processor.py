"""A tokenizer in a processor's place: a language model's chats are texts, and no picture is among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torch import Tensor
from transformers import PreTrainedTokenizerBase

# FastChat's vicuna_v1.1, for checkpoints that bring no template, as Vicuna's do not.
VICUNA: Final = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, and"
    " polite answers to the user's questions.{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ ' USER: ' + message['content'] }}{% else %}{{ ' ASSISTANT: ' + message['content'] + eos_token }}{% endif %}"
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

    def apply_chat_template(self, chat: Sequence[Mapping[str, Any]], add_generation_prompt: bool) -> str:
        """Write a chat whose contents are texts."""
        options: dict[str, Any] = {"chat_template": self.chat_template, "tokenize": False}
        return str(
            self.tokenizer.apply_chat_template(list(chat), add_generation_prompt=add_generation_prompt, **options)
        )

    def __call__(self, images: None, text: str, return_tensors: str, **options: Any) -> Mapping[str, Tensor]:
        """Tokenise a written chat; only where the template is not the checkpoint's own does the tokenizer begin it."""
        if self.tokenizer.chat_template is not None:
            options["add_special_tokens"] = False
        read: Mapping[str, Tensor] = self.tokenizer([text], return_tensors=return_tensors, **options)
        return read

    def save_pretrained(self, directory: Path) -> None:
        """Write the tokenizer's files."""
        self.tokenizer.save_pretrained(directory)


def plain_chat(chat: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a chat of parts with the text of each message as its content."""
    return [
        {**message, "content": "".join(part["text"] for part in message["content"] if part["type"] == "text")}
        for message in chat
    ]
