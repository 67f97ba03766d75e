"""Tokens that are pieces of a character: bytes on trees, the character in answers and sentences."""

from __future__ import annotations

import json

import pytest
from support import smol
from support.visual_traces import hand_made, retexted
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from specllava.models.tokens import Detokenizer
from specllava.token_text import TextJoiner, byte_text, join_texts, shorten_bytes
from specllava.trace import DecodeTrace
from specllava.tree import DraftTree
from visual.player.frames import race_frames
from visual.player.labels import path_text, token_label, word_after, word_at
from visual.player.recorded import Recorded
from visual.player.sentences import accept_words, node_words, text_of
from visual.player.tree import StepTree

TEXTS = ("你好 😀 naïve", "👩‍👩‍👧 ok", "a\n€ b", "Ω", "\ufffd")


def byte_fallback() -> PreTrainedTokenizerFast:
    """A tokenizer of "a" and bytes, as LLaVA-1.5's spells what its vocabulary lacks."""
    tokens = ["<unk>", "a", *(f"<0x{byte:02X}>" for byte in range(256))]
    places = {token: place for place, token in enumerate(tokens)}
    made = Tokenizer(models.BPE(places, [], unk_token="<unk>", byte_fallback=True))
    made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")


def spoken(*, last: str = " left") -> DecodeTrace:
    """A step that says a face in two tokens; the draft also guesses another face, and begins a third character."""
    tree = DraftTree((8, 3, 2, 1, 4), (-1, 0, 1, 1, 2), (0.0, -0.1, -0.2, -1.0, -0.5), (None,) * 5)
    made = hand_made(tree, (1, 2), 5)
    return retexted(
        made, {3: " <0xF0><0x9F>", 2: "<0x98><0x80>", 1: "<0x98><0x81>", 4: "<0xE4>", 5: last}
    )


@pytest.mark.parametrize("tokenizer", [smol.tokenizer(), byte_fallback()], ids=["byte-level", "byte fallback"])
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
        frames = map(json.loads, race_frames(Recorded("race", None, None, trace)))
        (step,) = [frame for frame in frames if frame["kind"] == "step"]
        return list(step["words"])

    assert words(spoken()) == [[" ", "small"], ["😀", "small"], [" left", "large"]]
    assert words(spoken(last="<0xE4>"))[-1] == ["", "large"]
