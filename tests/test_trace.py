"""Traces come back byte for byte, nothing else is taken for one, and pieces of characters are bytes in them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from support import models
from support.cases import complaint
from support.shipped_races import frames_of
from support.visual_traces import hand_made
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

import specllava.trace
from specllava.config import DecodingConfig
from specllava.models.tokens import Detokenizer
from specllava.pair import Pair
from specllava.token_text import TextJoiner, byte_text, join_texts, shorten_bytes
from specllava.trace import MAX_SETTINGS, DecodeTrace, Draw
from specllava.tree import DraftTree
from visual.player.labels import path_text, token_label, word_after, word_at
from visual.player.recorded import Recorded
from visual.player.sentences import accept_words, node_words, text_of
from visual.player.tree import StepTree


@pytest.fixture(scope="module")
def real(tiny: Pair) -> DecodeTrace:
    """A run of models with accepted, rejected and unexpanded nodes."""
    config = DecodingConfig(max_new_tokens=20, nodes=10, depth=4, entropy_threshold=0.3, min_log_prob=-2.0)
    trace = models.decode(tiny, models.prompt(0), config)
    assert any(step.verification.accepted for step in trace.steps)
    return trace


def test_a_trace_comes_back_equal_and_writes_the_same_bytes(real: DecodeTrace):
    """Of odd characters too; those of every rule, drafter and temperature do in test_drafters.py."""
    odd, end = 'a "b" \\ \n \x00 \u2028 \uffff é 😀 </script>', real.token_ids[-1]
    setting = replace(real.setting, pair=odd, versions={odd: odd})
    strange = replace(real, lane=odd, prompt=odd, image=odd, text=odd, setting=setting, eos_token_ids=(end + 1,))
    for trace in (real, strange, replace(strange, steps=real.steps[:1], finish_reason="stopped")):
        written = trace.to_json()
        again = DecodeTrace.from_json(written)
        assert again == trace == DecodeTrace.from_json(written.decode()) and again.to_json() == written


def refused(data: bytes | str) -> str:
    """The one line that refuses a file."""
    line = complaint(lambda: DecodeTrace.from_json(data))
    assert "trace" in line
    return line


def places(data: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Ways to every object of a JSON document, those with free keys apart."""
    if isinstance(data, dict) and way[-1:] not in (("texts",), ("versions",)):
        yield way
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield from places(value, (*way, key))


def changed(trace: DecodeTrace, way: tuple[Any, ...], change: Callable[[Any], None]) -> str:
    """The trace's JSON with the object at ``way`` changed."""
    document = json.loads(trace.to_json())
    spot = document
    for key in way:
        spot = spot[key]
    change(spot)
    return json.dumps(document)


def test_what_is_no_trace_is_refused(real: DecodeTrace):
    written = real.to_json()
    for cut in range(0, len(written), max(1, len(written) // 40)):
        assert refused(written[:cut]).startswith("not a specllava trace (schema 1): ")
    for data in (b"null", b"[]", b"{}", b'"text"', b"\xff\xfe", b"[" * 100_000, b"1" * 10_000):
        refused(data)
    for version in (0, 2, "1.0", None):
        line = refused(changed(real, (), lambda document, version=version: document.update(schema_version=version)))
        assert f"schema_version = {version!r}" in line
    assert "schema_version: field required" in refused(changed(real, (), lambda spot: spot.pop("schema_version")))


def test_unknown_keys_and_numbers_that_are_none_are_refused_at_every_place(real: DecodeTrace):
    kinds = {tuple("*" if isinstance(k, int) else k for k in way): way for way in places(json.loads(real.to_json()))}
    assert len(kinds) == 10  # document, setting, config, prefill, step; tree, verdict, view, seconds, pruned guess
    tried = 0
    for way in kinds.values():
        assert "surprise" in refused(changed(real, way, lambda spot: spot.update(surprise=1)))
        spot = json.loads(real.to_json())
        for key in way:
            spot = spot[key]
        for key, old in spot.items():
            first = old[0] if isinstance(old, list) and old else old
            if key == "entropies" or isinstance(first, int | float):
                for value in map(float, ("nan", "inf", "-inf")):
                    wrong = [value, *old[1:]] if isinstance(old, list) else value
                    refused(changed(real, way, lambda spot, key=key, wrong=wrong: spot.update({key: wrong})))
                tried += 1
    assert tried > 20


BRANCH, BEGINNING = "are not a branch of the tree", "is not a beginning of accepted tokens and next token"
VIEW = ("choices", "choice_probs", "margins", "token_probs", "token_ranks")
BROKEN: list[tuple[str, Callable[[Any], object], str]] = [  # an object of the first accepting step, its change, words
    *(("verification", lambda one, way=way: one.update(accepted=way), BRANCH) for way in ([0], [-1], [99], [1, 1])),
    *(("", lambda one, tokens=tokens: one.update(emitted=tokens), BEGINNING) for tokens in ([], [-7])),
    ("", lambda one: one["emitted"].append(one["emitted"][-1]), BEGINNING),
    *(("target", lambda one, key=key: one[key].pop(), "one entry for each of the ") for key in VIEW),
    ("tree", lambda one: one["parents"].__setitem__(1, 1), "node 1 has parent 1"),
    ("target", lambda one: one["token_probs"].__setitem__(0, 1.5), "token_probs"),
    ("target", lambda one: one["choice_probs"].__setitem__(0, -0.5), "choice_probs"),
    ("seconds", lambda one: one.update(draft=-1.0), "seconds"),
]  # fmt: skip


def test_a_step_that_no_run_makes_is_refused(real: DecodeTrace):
    number = next(number for number, step in enumerate(real.steps) if step.verification.accepted)
    for name, change, words in BROKEN:
        assert words in refused(changed(real, ("steps", number, *([name] if name else [])), change))
    token = real.steps[0].tree.tokens[-1]
    line = refused(changed(real, ("texts",), lambda texts: texts.pop(str(token))))
    assert f"no text for token ids [{token}]" in line


def test_a_file_that_is_too_large_is_not_parsed(real: DecodeTrace, monkeypatch: pytest.MonkeyPatch):
    written = real.to_json()
    monkeypatch.setattr(specllava.trace, "MAX_FILE_BYTES", len(written) - 1)
    assert refused(written) == f"the trace has {len(written):,} bytes, more than the {len(written) - 1:,} that are read"
    monkeypatch.setattr(specllava.trace, "MAX_FILE_BYTES", len(written))
    assert DecodeTrace.from_json(written) == real


def test_a_draw_that_no_run_can_have_is_refused(tiny: Pair, real: DecodeTrace) -> None:
    whole = Draw(0, 5, 0.5, 0.75, 0.3, 0.4, (4, 5), (0.6, 0.3), (0.5, 0.4))
    none: tuple[dict[str, Any], ...] = ({"target_probs": (0.6,)}, {"draft_probs": ()}, {"starts": (0.0, 0.6)})
    for change in (*none, {"draft_prob": None}, {"acceptance": None}, {"token": 6}):
        with pytest.raises(ValueError, match=r"one probability of each kind|token 6 is not among those"):
            replace(whole, **change)
    drawn = DecodingConfig(temperature=1.2, max_new_tokens=12, rule="sequoia", depth=3, nodes=6, children="drawn")
    document = models.decode(tiny, models.prompt(0), drawn).to_json()
    steps = json.loads(document)["steps"]
    assert all("draws" not in step for step in json.loads(real.to_json())["steps"])
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"uniform": 1.0}, "uniform"), ({"uniform": float("nan")}, "uniform"), ({"node": 99}, "a draw follows none"),
        ({"target_prob": 1.5}, "target_prob"), ({"surprise": 1}, "surprise"), ({"tokens": [-1, 5]}, "tokens"),
        ({"tokens": [4, 999_999], "token": 999_999}, "no text for token ids"),
    )  # fmt: skip
    at = next(number for number, draw in enumerate(steps[0]["draws"]) if len(draw["tokens"]) > 2)
    for change, words in cases:
        wrong = json.loads(document)
        draw = wrong["steps"][0]["draws"][at]
        draw |= change
        if "tokens" in change:
            draw |= {name: draw[name][:2] for name in ("target_probs", "draft_probs", "starts")}
        with pytest.raises(ValueError, match=words):
            DecodeTrace.from_json(json.dumps(wrong))


def test_a_trace_names_the_settings_in_force():
    asked = {"repetition_penalty": 1.05, "min_p": 0.1, "suppress_tokens": list(range(50)), "typical_p": 1.0}
    pair, config = models.pair("mixed"), DecodingConfig(max_new_tokens=20)
    pair.target.generation_config.update(**asked)
    greedy = models.decode(pair, models.prompt(0), config).setting.generation_config
    assert greedy == pair.info.generation_config
    assert greedy == "repetition_penalty 1.05, suppress_tokens [0, 1, 2, 3, 4, 5, ...]"
    warm = models.decode(pair, models.prompt(0), replace(config, temperature=0.5))
    assert warm.setting.generation_config == f"{greedy}, min_p 0.1"
    assert DecodeTrace.from_json(warm.to_json()) == warm
    document = json.loads(warm.to_json())
    document["setting"]["generation_config"] = "x" * (MAX_SETTINGS + 1)
    with pytest.raises(ValueError, match="generation_config"):
        DecodeTrace.from_json(json.dumps(document))


TEXTS = ("你好 😀 naïve", "👩‍👩‍👧 ok", "a\n€ b", "Ω", "\ufffd")


def byte_fallback() -> PreTrainedTokenizerFast:
    """A tokenizer of "a" and bytes, as LLaVA-1.5's spells what its vocabulary lacks."""
    tokens = ["<unk>", "a", *(f"<0x{byte:02X}>" for byte in range(256))]
    places = {token: place for place, token in enumerate(tokens)}
    made = Tokenizer(BPE(places, [], unk_token="<unk>", byte_fallback=True))
    made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")


def spoken(*, last: str = " left") -> DecodeTrace:
    """A step that says a face in two tokens; the draft also guesses another face, and begins a third character."""
    tree = DraftTree((8, 3, 2, 1, 4), (-1, 0, 1, 1, 2), (0.0, -0.1, -0.2, -1.0, -0.5), (None,) * 5)
    made = hand_made(tree, (1, 2), 5)
    texts = {3: " <0xF0><0x9F>", 2: "<0x98><0x80>", 1: "<0x98><0x81>", 4: "<0xE4>", 5: last}
    return replace(made, texts=made.texts | texts)


@pytest.mark.parametrize(
    "tokenizer", [models.processor().tokenizer, byte_fallback()], ids=["byte-level", "byte fallback"]
)
@pytest.mark.parametrize("text", TEXTS)
def test_pieces_of_characters_are_bytes_that_join_to_the_text(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    texts = Detokenizer(tokenizer)
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = [texts.text_of(token) for token in ids]
    assert len(pieces) > len(text.encode()) - 3 and "\ufffd" not in pieces
    assert join_texts(pieces) == tokenizer.decode(ids)


def test_bytes_that_are_no_character_stay_bytes() -> None:
    assert byte_text(b" \xe4\xbd") == " <0xE4><0xBD>" and byte_text("é".encode()) == "é"
    assert join_texts(["<0xE4>", "a", "<0xBD>", "<0xF0><0x9F>"]) == "<0xE4>a<0xBD><0xF0><0x9F>"
    assert join_texts(["\ud800"]) == "<0xED><0xA0><0x80>"  # half of a character, of a file
    assert shorten_bytes("a<0xE4><0xBD> <0xA0>, <0x41>") == "a<E4 BD> <A0>, <0x41>"
    joiner = TextJoiner()
    assert [joiner.add(piece) for piece in (" <0xF0><0x9F>", "<0x98>", "<0x80>!")] == [" ", "", "😀!"]


def test_trees_show_bytes_and_sentences_characters() -> None:
    trace = spoken()
    step = trace.steps[0]
    tree = StepTree(trace, step)
    labels = tree.labels
    assert labels[:5] == ("a", "<F0 9F>", "…<98 80>", "…<98 81>", "<E4>")
    assert token_label(trace, 3) == "<F0 9F>"
    assert word_at(trace, step, 1) == word_at(trace, step, 2) == "😀" and word_at(trace, step, 3) == "😁"
    assert path_text(trace, step, 2) == "a 😀" and word_after(trace, step, 2, 5) == "left"
    words = accept_words(trace, step)
    said = text_of(words.say) + text_of(words.more)
    assert "After “😀” the guess was <E4>" in said
    written = json.dumps([tree.data(), node_words(tree)], ensure_ascii=False)
    assert "\ufffd" not in written and "<0x" not in written and "<F0 9F>" in written


def test_a_character_stands_in_the_lane_where_its_last_piece_came() -> None:
    def words(trace: DecodeTrace) -> list[list[str]]:
        (step,) = (frame for frame in frames_of(Recorded("race", None, None, trace)) if frame["kind"] == "step")
        return list(step["words"])

    assert words(spoken()) == [[" ", "small"], ["😀", "small"], [" left", "large"]]
    assert words(spoken(last="<0xE4>"))[-1] == ["", "large"]
