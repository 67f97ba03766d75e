"""Tokenizers: special tokens, ends of an answer, chat templates, texts of tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers import AutoModel, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin
from transformers.convert_slow_tokenizer import bytes_to_unicode

from specllava.token_text import BYTE, byte_text

IMAGE_MARKER = "<image>"
CHARACTERS: Final = 16  # of a token, more than texts have on average; of a longer text a beginning is tokenised first
_BYTE_VALUES: Final = {sign: value for value, sign in bytes_to_unicode().items()}  # of byte-level tokenizers


class TextError(ValueError):
    """Error of a text that cannot be given to a model unchanged."""


def bos_options(tokenizer: PreTrainedTokenizerBase, text: str) -> dict[str, bool]:
    """Return tokenizer options for a chat template's text: no second BOS token where the text begins with one."""
    begun = bool(tokenizer.bos_token) and text.startswith(str(tokenizer.bos_token))
    return {"add_special_tokens": False} if begun else {}


def beginning(tokenizer: PreTrainedTokenizerBase, text: str, length: int) -> str:
    """Return a text, or a part from its start that alone has more than twice ``length`` tokens.

    So a text of any size costs what its context costs: tokenising 100 MB takes a minute.
    """
    end = CHARACTERS * length
    while end < len(text):
        if len(tokenizer(text[:end], add_special_tokens=False, verbose=False)["input_ids"]) > 2 * length:
            return text[:end]
        end *= 2
    return text


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """Return the strings that the tokenizer reads as one token in a text, longest first; blank ones aside."""
    added = (token.content for token in tokenizer.added_tokens_decoder.values() if token.special)
    every = {*added, *tokenizer.all_special_tokens, IMAGE_MARKER}
    return tuple(sorted(filter(str.strip, every), key=lambda one: (-len(one), one)))


def check_text(text: str, special: Sequence[str], whose: str) -> None:
    """Refuse a text that would not be read as text; ``whose`` names it in the message.

    Raises:
        TextError: it holds one of the ``special`` tokens, or half of a character.
    """
    for token in special:
        if token in text:
            sets = "the picture's place is" if token == IMAGE_MARKER else "special tokens are"
            raise TextError(f"{whose} contains {token}: {sets} set by the chat, not in the text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        position, half = error.start, text[error.start]
        raise TextError(f"{whose} is no UTF-8 text: {half!r} at character {position + 1} is none") from error


def escape_special_tokens(text: str, special: Sequence[str]) -> str:
    """Insert a space into each string of a model's text that spells one of the ``special`` tokens."""
    for token in special:
        text = text.replace(token, f"{token[0]} {token[1:]}")
    return text


def slot_ids(config: PretrainedConfig) -> tuple[int, ...]:
    """Return the ids of the tokens of image slots; none for a plain language model."""
    configured = getattr(config, "image_token_id", None)
    return () if configured is None else (configured,)


def eos_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the ids of the first source that names any, of generation settings, configurations and tokenizer.

    An empty list names none on purpose: answers then end at the limit only.

    Raises:
        ValueError: a source names something that is no token id.
    """
    config = model.config
    sources = {"the generation settings": model.generation_config, "the configuration": config}
    sources |= {"the decoder's configuration": config.get_text_config(), "the tokenizer": tokenizer}
    for source, settings in sources.items():
        if (value := getattr(settings, "eos_token_id", None)) is not None:
            ids = list(value) if isinstance(value, list | tuple) else [value]
            if wrong := [one for one in ids if not isinstance(one, int) or isinstance(one, bool) or one < 0]:
                raise ValueError(
                    f"eos_token_id in {source} is {str(wrong[0])[:40]!r}: a token's id (a number) ends answers"
                )
            return frozenset(ids)
    return frozenset()


def check_tokens(
    name: str, tokenizer: PreTrainedTokenizerBase, target_name: str, target_tokenizer: PreTrainedTokenizerBase
) -> None:
    """Refuse a model whose ids mean other tokens than the target's, with the number of ids and the first of them.

    Raises:
        ValueError: with the number of ids that differ, and the first of them.
    """
    theirs = {number: token for token, number in tokenizer.get_vocab().items()}
    ours = {number: token for token, number in target_tokenizer.get_vocab().items()}
    shared = sorted(theirs.keys() & ours.keys())
    differ = [number for number in shared if theirs[number] != ours[number]]
    if differ:
        first = differ[0]
        raise ValueError(
            f"the tokenizers of {name} and {target_name} differ in {len(differ)} of {len(shared)} shared ids, first in"
            f" {first}: {theirs[first]!r} and {ours[first]!r}; a draft needs the target's tokens"
        )


def resize_vocabulary(model: PreTrainedModel, name: str, tokens: int, size: int) -> None:
    """Give a model ``size`` rows of embeddings and of its head, in place.

    New rows are the mean of those there are. As an input that is a token of no particular meaning, as a guess (the mean
    of logits) never better than the best. Rows after the last token are padding and may be cut.

    Args:
        tokens: ids that the model's tokenizer uses.

    Raises:
        ValueError: it uses ids that the target does not have.
    """
    rows = model.get_input_embeddings().weight
    if tokens > size:
        raise ValueError(f"{name} uses {tokens} tokens, more than the target's {size} rows: no draft can be made of it")
    head = model.get_output_embeddings().weight
    embeddings = model.get_input_embeddings()  # which may do more than look up
    embeddings.weight, embeddings.num_embeddings = nn.Parameter(_resize(rows, size)), size
    wider = nn.Linear(head.shape[1], size, bias=False, device="meta")
    wider.weight = nn.Parameter(_resize(head, size))
    model.set_output_embeddings(wider)
    for config in {id(one): one for one in (model.config, model.config.get_text_config())}.values():
        config.vocab_size = size
        config.tie_word_embeddings = False


@torch.no_grad()
def _resize(rows: Tensor, size: int) -> Tensor:
    if size <= len(rows):
        return rows[:size].clone()
    mean = rows.double().mean(dim=0).to(rows.dtype)
    return torch.cat([rows, mean.expand(size - len(rows), -1)])


class Detokenizer:
    """Decoder of token ids to text; the text that one token adds is computed once."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._anchor: list[int] = tokenizer.encode("a", add_special_tokens=False)
        self._before: str = tokenizer.decode(self._anchor)
        self._texts: dict[int, str] = {}

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True)).strip()

    def text_of(self, token: int) -> str:
        """Return the text that one token adds, its leading space included; bytes of a piece of a character.

        Decoded after another token, because some tokenizers drop the space of a text's first one.
        """
        if token not in self._texts:
            whole: str = self._tokenizer.decode([*self._anchor, token])
            text = whole[len(self._before) :]
            self._texts[token] = self._bytes_of(token) or text if "\ufffd" in text else text
        return self._texts[token]

    def _bytes_of(self, token: int) -> str:
        """Return the text of a token's bytes; "" where its tokenizer does not spell them."""
        spelled: str = self._tokenizer.convert_ids_to_tokens(token)
        if BYTE.fullmatch(spelled):
            return spelled
        values = [_BYTE_VALUES.get(sign) for sign in spelled]
        return "" if None in values else byte_text(bytes(value for value in values if value is not None))


def count_prefix_tokens(vision: PretrainedConfig) -> int:
    """Count the tokens that a tower puts before a picture's patches: a class token, registers or none."""
    shallow = deepcopy(vision)
    shallow.num_hidden_layers = 1
    with torch.device("meta"):
        states = AutoModel.from_config(shallow)(torch.empty(1, 3, vision.image_size, vision.image_size))[0]
    return int(states.shape[1] - (vision.image_size // vision.patch_size) ** 2)


Message = dict[str, Any]
Content = str | list[dict[str, Any]]  # a text, or parts: texts and pictures
Messages = str | Sequence[Message]  # one question, or a chat that ends with one
WORD, MARK = "probe", "unread"  # of a probe: what a template writes of a message, and what it has no use for
ADVICE: Final = "give a template that does with --chat-template"


def apply_template(
    processor: ProcessorMixin, chat: Sequence[Message], name: str, add_generation_prompt: bool = True
) -> str:
    """Write a chat by the template of the model called ``name``, which must show all messages and pictures.

    A content stays a text or a list of parts where the template reads it so, and takes the other form where not.

    Raises:
        ValueError: the template fails, or leaves out a message or its pictures; there is none.
    """
    template = _find_template(processor, name)

    def write(messages: Sequence[Message], more: bool = True) -> str:
        return str(processor.apply_chat_template(messages, chat_template=template, add_generation_prompt=more))

    forms = {role: _forms_read(write, role) for role in {message["role"] for message in chat}}
    try:
        written = write([_in_form(message, forms[message["role"]]) for message in chat], add_generation_prompt)
    except Exception as error:  # whatever that program raises
        why = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise ValueError(f"the chat template of {name} fails: {why}") from error
    if lost := next((role for role, read in forms.items() if not read), None):
        raise ValueError(f"the chat template of {name} writes no message of the {lost}: leave it out, or {ADVICE}")
    shown = any(part["type"] == "image" for one in chat if isinstance(one["content"], list) for part in one["content"])
    if shown and not (list in forms["user"] and _shows_pictures(write)):
        raise ValueError(f"the chat template of {name} shows no pictures: ask without one, or {ADVICE}")
    return written


def use_template(processor: ProcessorMixin, file: str | Path) -> None:
    """Replace the template of a checkpoint by that of a file.

    Raises:
        ValueError: no file of text there, or a template that cannot write a question.
    """
    try:
        template = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        template = ""
    if not template:
        raise ValueError(f"no chat template at {file}: a text file in UTF-8 is expected")
    processor.tokenizer.chat_template = template
    if isinstance(processor, ProcessorMixin):  # no tokenizer in a processor's place
        processor.chat_template = template
    apply_template(processor, [{"role": "user", "content": WORD}], str(file))


def text_of(content: Content) -> str:
    """Return the text of a message's content, as it was given."""
    return content if isinstance(content, str) else "".join(one["text"] for one in content if one["type"] == "text")


def _find_template(processor: ProcessorMixin, name: str) -> str:
    """Return the template where transformers looks for it: the processor's, or its tokenizer's."""
    configured: Any = processor.chat_template or processor.tokenizer.chat_template or {}
    if not isinstance(configured, dict):
        return str(configured)
    if "default" in configured:
        return str(configured["default"])
    if configured:
        called = ", ".join(configured)
        raise ValueError(f"{name} has chat templates called {called} and no default: name a file with --chat-template")
    raise ValueError(f"{name} has no chat template: name a file with one with --chat-template")


def _forms_read(write: Callable[[Sequence[Message]], str], role: str) -> tuple[type, ...]:
    """Return the forms of a role's content that a template reads, by a probe of each: ``str``, ``list``, or both."""
    read: list[type] = []
    for content in (WORD, [{"type": "text", "text": WORD, "mark": MARK}]):
        for question in ("?", [{"type": "text", "text": "?"}]):
            asked, probe = {"role": "user", "content": question}, {"role": role, "content": content}
            try:
                written = write({"user": [probe], "system": [probe, asked]}.get(role, [asked, probe, asked]))
            except Exception:  # noqa: BLE001 - whatever it raises, it does not read this form
                continue
            if WORD in written and MARK not in written:
                read.append(type(content))
                break
    return tuple(read)


def _in_form(message: Message, read: Sequence[type]) -> Message:
    """Return a message with its content in a form that the template reads; unchanged where it reads none."""
    content: Content = message["content"]
    if not read or type(content) in read:
        return message
    other: Content = text_of(content) if isinstance(content, list) else [{"type": "text", "text": content}]
    return message | {"content": other}


def _shows_pictures(write: Callable[[Sequence[Message]], str]) -> bool:
    """Check whether a template that reads parts writes anything for a picture."""
    text = {"type": "text", "text": WORD}
    with_one, without = (write([{"role": "user", "content": parts}]) for parts in ([{"type": "image"}, text], [text]))
    return with_one != without


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
