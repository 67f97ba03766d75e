"""Chat templates, which come with a checkpoint; transformers renders them in jinja2's sandbox."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from transformers import ProcessorMixin

Message = dict[str, Any]
Content = str | list[dict[str, Any]]  # a text, or parts: texts and pictures
WORD, MARK = "probe", "unread"  # of a probe: what a template writes of a message, and what it has no use for
WAY_OUT: Final = "give a template that does with --chat-template"


def apply_template(
    processor: ProcessorMixin, chat: Sequence[Message], name: str, add_generation_prompt: bool = True
) -> str:
    """Write a chat by the template of the model called ``name``.

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
        raise ValueError(f"the chat template of {name} writes no message of the {lost}: leave it out, or {WAY_OUT}")
    shown = any(part["type"] == "image" for one in chat if isinstance(one["content"], list) for part in one["content"])
    if shown and not (list in forms["user"] and _shows_pictures(write)):
        raise ValueError(f"the chat template of {name} shows no pictures: ask without one, or {WAY_OUT}")
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
    found: Any = processor.chat_template or processor.tokenizer.chat_template
    if isinstance(found, dict) and "default" not in found:
        raise ValueError(
            f"{name} has chat templates called {', '.join(found)} and no default: name one's file with --chat-template"
        )
    if not found:
        raise ValueError(f"{name} has no chat template: name a file with one with --chat-template")
    template: str = found["default"] if isinstance(found, dict) else found
    return template


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
