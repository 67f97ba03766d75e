"""Messages reach the template as they were given, judged by transformers' ``apply_chat_template``; or are refused."""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support import checkpoints, models
from support.cases import complaint
from support.chats import SHORT
from support.families import KINDS, TEXT_KINDS
from transformers import AutoModelForImageTextToText, AutoProcessor

from specllava.chat import Chat
from specllava.cli.main import main
from specllava.config import DecodingConfig
from specllava.pair import Pair
from specllava.prompt import merge_features

END = "{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
EACH = "{% for m in messages %}{{ m['role'] }}"
PART = "{% for c in content %}{% if c.type == 'image' %}<image>{% else %}{{ c.text }}{% endif %}{% endfor %}"
SYSTEM_TEXT = (  # as Pixtral's: the system's content is a text, the user's has parts
    "{% if messages[0].role == 'system' %}{{ '[S]' + messages[0].content + '[/S]' }}{% endif %}"
    "{% for m in messages if m.role != 'system' %}[{{ m.role }}]{% set content = m.content %}" + PART + END
)
Form = type[str] | type[list[Any]]
TEMPLATES: dict[str, tuple[str, Form, Form]] = {  # template, and what it reads of the user and of the system
    "joined by ~": (EACH + "{{ ': ' ~ m['content'] }}" + END, str, str),
    "printed": (EACH + ": {{ m['content'] }} " + END, str, str),
    "joined by +": (EACH + "{{ ': ' + m['content'] }}" + END, str, str),
    "stripped": (EACH + "{{ m.content.strip() }}" + END, str, str),
    "trimmed": (EACH + "{{ m.content | trim }}" + END, str, str),
    "as JSON": (EACH + "{{ m.content | tojson }}" + END, str, str),
    "sliced": (EACH + "{% set text = m.content %}{{ text[:9] }}{{ text[9:] }}" + END, str, str),
    "parts": (EACH + ": {% set content = m.content %}" + PART + END, list, list),
    "a macro": (
        "{% macro write(content) %}" + PART + "{% endmacro %}" + EACH + "{{ write(m.content) }}" + END, list, list
    ),
    "parts trimmed": (EACH + "{% for c in m.content %}{{ c.text | trim }}{% endfor %}" + END, list, list),
    "the first part": (EACH + "{{ m.content[0].text }}" + END, list, list),
    "a text or parts": (EACH + "{% if m.content is string %}({{ m.content }}){% else %}{% set content = m.content %}"
                        + PART + "{% endif %}" + END, str, str),
    "system as a text": (SYSTEM_TEXT, list, str),
    **{name: (template, list, list) for name, template in checkpoints.TEMPLATES.items()},
    **{name: (TEXT_KINDS[name].template, str, str) for name in ("qwen2", "llama", "mistral", "gemma3_text", "phi3")},
    **{name: (KINDS[name].template, list, list) for name in ("llava_onevision", "internvl", "idefics3", "smolvlm",
                                                             "qwen2_vl", "qwen3_vl", "gemma3")},
}  # fmt: skip
TEXTS = ("What is this?", "  def f(x):\n    return x\n\n", "\n1. one\n2. two \t", "a  b ")


def with_template(template: Any) -> Pair:
    pair = models.pair(None)
    pair = replace(pair, processor=copy.copy(pair.processor))
    pair.processor.chat_template = template
    return pair


def formed(chat: list[dict[str, Any]], user: Form, system: Form) -> list[dict[str, Any]]:
    """The messages in the form that a template reads, converted by hand."""
    forms = {"user": user, "assistant": user, "system": system}
    return [one | {"content": one["content"] if forms[one["role"]] is str else
                   [{"type": "text", "text": one["content"]}]} for one in chat]  # fmt: skip


def judged(pair: Pair, chat: list[dict[str, Any]], pictures: list[Any]) -> list[int]:
    text = pair.processor.apply_chat_template(chat, add_generation_prompt=True)
    begun = text.startswith(pair.processor.tokenizer.bos_token)
    read = pair.processor(images=[pictures] if pictures else None, text=text, add_special_tokens=not begun)
    ids: list[int] = read["input_ids"][0]
    return ids


@pytest.mark.parametrize("name", TEMPLATES)
def test_texts_are_in_the_prompt_as_transformers_writes_them(name: str) -> None:
    """Plain, with indentation and blank ends, in a dialogue, after a system turn; given as a text and as a part."""
    template, user, system = TEMPLATES[name]
    pair = with_template(template)
    for number, text in enumerate(TEXTS):
        turn = {"role": "user", "content": text}
        before = [{"role": "user", "content": "Hi\n"}, {"role": "assistant", "content": " Yes.\n"}]
        for chat in ([turn], [*before, turn], [{"role": "system", "content": TEXTS[number - 1]}, *before, turn]):
            if name == "mistral" and len(chat) == 4:
                continue  # which writes a system turn as it would an answer
            wanted = judged(pair, formed(chat, user, system), [])
            assert pair.prompt(None, chat).input_ids[0].tolist() == wanted
            if name != "a text or parts":  # there both are right, and differ
                given = formed(chat, list, list)
                if user is str:  # a text in two parts is one
                    given[-1]["content"] = [{"type": "text", "text": one} for one in (text[:3], text[3:])]
                assert pair.prompt(None, given).input_ids[0].tolist() == wanted
    assert pair.prompt(None, TEXTS[1]).text == TEXTS[1]


@pytest.mark.parametrize("name", ["parts", "a macro", "a text or parts", "system as a text", "llava", "llava_next"])
def test_parts_keep_their_order(name: str) -> None:
    pair, one = with_template(TEMPLATES[name][0]), models.picture(1)
    for order in ("tp", "pt", "tptpt", "ptp", "ttpp", "pttt"):
        parts: list[dict[str, Any]] = [
            {"type": "text", "text": f" part {number}:\n"} if kind == "t" else {"type": "image", "image": one}
            for number, kind in enumerate(order)
        ]
        shown = [{"type": "image"} if part["type"] == "image" else part for part in parts]
        wanted = judged(pair, [{"role": "user", "content": shown}], [one] * order.count("p"))
        assert pair.prompt(None, [{"role": "user", "content": parts}]).input_ids[0].tolist() == wanted
        texts = [part for part in parts if part["type"] == "text"]
        first = judged(pair, [{"role": "user", "content": [{"type": "image"}, *texts]}], [one])
        assert pair.prompt(one, [{"role": "user", "content": texts}]).input_ids[0].tolist() == first


FAILING = (
    ("{% for x in %}", "TemplateSyntaxError"), ("{{ raise_exception('only one') }}", "TemplateError: only one"),
    ("{{ ''.__class__.__mro__ }}", "SecurityError"), ("{{ range(10 ** 9) | list }}", "OverflowError"),
    ("{{ messages[7]['role'] }}", "UndefinedError"),
)  # fmt: skip


@pytest.mark.parametrize(("template", "asked", "words"), [
    *((template, None, f"the chat template of target 0 fails: {words}") for template, words in FAILING),
    (TEMPLATES["joined by +"][0], models.picture(0), "shows no pictures: ask without one, or give a template"),
    (TEMPLATES["parts trimmed"][0], models.picture(0), "shows no pictures"),
    ("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}", None, "writes no message of the system"),
    ("{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
     "{{ m.content }}{% endfor %}", None, "fails: TemplateError: no system here"),
    ("{{ bos_token }}", None, "writes no message of the "),
    (None, None, "target 0 has no chat template: name a file with one with --chat-template"),
    ({"rag": "", "tools": ""}, None, "target 0 has chat templates called rag, tools and no default"),
])  # fmt: skip
def test_what_a_template_would_leave_out_is_refused(template: Any, asked: Any, words: str) -> None:
    chat = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    assert words in complaint(lambda: with_template(template).prompt(asked, "Hi" if asked else chat))


SPECIAL = "special tokens are set by the chat, not in the text"


def turns(*contents: Any, roles: tuple[str, ...] = ("user", "assistant", "user")) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]


PICTURE = {"type": "image", "image": models.picture(0)}
REFUSED: list[tuple[Any, str]] = [
    *((text, "the prompt is empty") for text in ("", " ", "\n\t ")),
    *((text, "contains <image>") for text in ("<image>", "What is in <image> here?", "a<image><image>")),
    *((f"Is {token} here?", f"the prompt contains {token}: {SPECIAL}") for token in ("<pad>", "<s>", "</s>")),
    ("caf\udce9", "the prompt is no UTF-8 text: '\\udce9' at character 4 is none"),
    (turns("Hi", "a</s>b", "Hi"), "message 1 contains </s>: "),
    (turns("Hi", "Hi", roles=("user", "user")), "message 1 is the user's: the user begins, and the two take turns"),
    (turns("Hi", "Hi", roles=("assistant", "user")), "message 0 is the assistant's"),
    ([], "must end with a message of the user"),
    (turns("Hi", "Yes"), "must end with a message"),
    (turns("Hi", "Hi", "Hi", roles=("user", "system", "user")), "message 1 is the sys"),
    (turns(None), "message 0 needs a role (system, user or assistant) and its text"),
    ([{"role": "user"}], "message 0 needs a role"),
    (turns("Hi", "Hi", roles=("tool", "user")), "needs a role (system, user or assistant)"),
    (["Hi", *turns("Hi")], "message 0 needs a role"),
    (turns(" ", "Hi", roles=("user", "user")), "message 0 is empty"),
    (turns("<image>", "Hi", roles=("user", "user")), "contains <image>"),
    (turns([]), "the prompt is empty"),
    (turns([PICTURE]), "the prompt is empty"),
    (turns([{"type": "text"}]), "neither a text nor a picture of the user"),
    (turns([{"type": "image", "image": None}]), "neither a text nor a picture"),
    (turns([{"type": "image", "image": "nowhere.png"}]), "no image file at nowhere.png"),
    (turns([{"type": "text", "text": "a <image>"}]), "contains <image>"),
    (turns("Hi", [PICTURE], "Hi"), "message 1 has a part"),
]


@pytest.mark.parametrize(("chat", "words"), REFUSED)
def test_what_is_no_prompt_is_refused(tiny: Pair, chat: Any, words: str) -> None:
    shown = (None, models.picture(0)) if isinstance(chat, str) else (None,)
    for picture in shown:
        assert words in complaint(lambda picture=picture: tiny.prompt(picture, chat))


def test_what_does_not_fit_is_refused_with_numbers_and_a_way_out(tiny: Pair) -> None:
    """A prompt that just fits is read."""
    prompt = models.prompt(0)
    free = tiny.context - prompt.length
    assert free > 500
    line = complaint(lambda: models.decode(tiny, prompt, DecodingConfig(max_new_tokens=free + 1)))
    for words in (f"{prompt.length} prompt tokens and {free + 1} new ones", f"context of {tiny.context}", f"{free} at"):
        assert words in line
    events = tiny.stream(models.picture(0), models.messages(0), DecodingConfig(max_new_tokens=free))
    assert next(events).prompt_tokens == prompt.length
    line = complaint(lambda: tiny.generate(None, "why? " * 2_000, DecodingConfig(max_new_tokens=1)))
    assert f"do not fit the context of {tiny.context}: shorten the prompt" in line
    line = complaint(lambda: models.decode(models.pair(None), prompt, DecodingConfig()))
    assert 'the pair tiny has no draft: use drafter "prompt-lookup" or "none"' in line


@pytest.mark.parametrize("slots", [0, 3, 5])
def test_image_slots_must_match_the_features(slots: int) -> None:
    model = models.target()
    ids = torch.tensor([[1, *[model.config.image_token_id] * slots, 9]])
    line = complaint(lambda: merge_features(model, ids, torch.zeros(1, 4, 32, dtype=torch.float64)))
    assert line.startswith(f"{slots} image slots in the prompt but 4 vision features: the processor ")
    if slots:
        assert "but 0 vision features" in complaint(lambda: merge_features(model, ids, None))


TOY = Path(__file__).resolve().parents[1] / "assets" / "toy" / "target"
SYSTEM, ASKED = " Be brief.\n", "Describe this.\n"
TURNS: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": ASKED}]
def test_a_command_reads_a_system_turn_and_a_template_of_a_file(tmp_path: Path) -> None:
    """By the answer of transformers' ``generate`` on the prompt that its processor writes by that template."""
    file, out = tmp_path / "own.jinja", tmp_path / "out.json"
    file.write_text(TEMPLATES["joined by +"][0], encoding="utf-8")
    given = ["--system", SYSTEM, "--prompt", ASKED, "--chat-template", str(file), "--max-new-tokens", "12"]
    assert main(["compare", *given, "--json", str(out)]) == 0
    model = AutoModelForImageTextToText.from_pretrained(TOY, dtype=torch.float32).eval()
    processor = AutoProcessor.from_pretrained(TOY)
    text = processor.apply_chat_template(TURNS, chat_template=file.read_text(), add_generation_prompt=True)
    read = processor(text=text, return_tensors="pt")
    answer = model.generate(**read, do_sample=False, max_new_tokens=12)[0, read["input_ids"].shape[1] :].tolist()
    text = processor.decode(answer, skip_special_tokens=True).strip()
    assert json.loads(out.read_text())["speculative"]["text"] == text


def test_a_dialogue_is_what_transformers_makes_of_its_system_turn_texts_and_pictures() -> None:
    """Two pictures in the first turn and one in the second; another system turn from the third on."""
    pair, turns, seen = models.pair("mixed"), [dict(TURNS[0])], []
    pictures = [models.picture(seed) for seed in range(3)]
    chat = Chat(pair, system=SYSTEM)
    for number, (question, shown) in enumerate(((ASKED, pictures[:2]), ("And this?", pictures[2:]), ("Why?", []))):
        chat.system = turns[0]["content"] = (SYSTEM, SYSTEM, "Be long.")[number]
        seen += shown
        parts = [*[{"type": "image"}] * len(shown), {"type": "text", "text": question}]
        turns = [*turns, {"role": "user", "content": parts}]
        text = pair.processor.apply_chat_template(
            [one if isinstance(one["content"], list) else formed([one], list, list)[0] for one in turns],
            add_generation_prompt=True,
        )
        inputs = pair.processor(images=seen, text=text, return_tensors="pt")
        inputs["pixel_values"] = inputs["pixel_values"].double()
        output = pair.target.generate(**inputs, do_sample=False, max_new_tokens=8, pad_token_id=0)
        trace = chat.ask(question, shown, replace(SHORT, max_new_tokens=8))
        assert trace.token_ids == tuple(output[0, inputs["input_ids"].shape[1] :].tolist())
        turns.append(chat.messages[-1])
    assert trace.image == "48 x 40 pixels, 48 x 40 pixels, 48 x 40 pixels"


@pytest.mark.parametrize("place", ["chat_template.jinja", "chat_template.json", "tokenizer_config.json"])
def test_the_template_is_read_where_transformers_reads_it(place: str, tmp_path: Path) -> None:
    target = Path(shutil.copytree(TOY, tmp_path / "target"))
    (target / "chat_template.jinja").unlink()
    template = TEMPLATES["trimmed"][0]
    fields = json.loads((target / place).read_text()) if place == "tokenizer_config.json" else {}
    text = template if place.endswith("jinja") else json.dumps(fields | {"chat_template": template})
    (target / place).write_text(text, encoding="utf-8")
    pair, reads = Pair.load(target), AutoProcessor.from_pretrained(TOY)
    written = reads.apply_chat_template(TURNS, chat_template=template, add_generation_prompt=True)
    assert pair.prompt(None, TURNS).input_ids[0].tolist() == reads(text=written)["input_ids"][0]


@pytest.mark.parametrize(("content", "words"), [
    (None, "no chat template at "), (b"\xff", "a text file in UTF-8 is expected"), (b"", "no chat template at "),
    (b"{% for %}", "fails: TemplateSyntaxError"), (b"Hello", "writes no message of the user"),
])  # fmt: skip
def test_a_file_that_is_no_template_is_refused_before_the_weights(content: Any, words: str, tmp_path: Path) -> None:
    file = tmp_path / "t.jinja"
    if content is not None:
        file.write_bytes(content)
    line = complaint(lambda: Pair.load(TOY, chat_template=file))
    assert words in line and str(file) in line
