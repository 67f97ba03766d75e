"""From a data file to batches: streamed, counted, through the chat template, and a pure function of the number."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from dataclasses import replace
from functools import cache

import pytest
import torch
from accelerate import Accelerator
from support import models
from support.distilling import rows, write_data
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors, trainers
from tokenizers import models as bpe
from transformers import LlavaProcessor, PreTrainedTokenizerFast

from recipes.toy.__main__ import main as toy
from recipes.toy.build import SPECIAL
from recipes.toy.corpus import TALKING, ChatBatches, conversation, corpus_text, encode_chat
from recipes.toy.draw import draw_scene
from recipes.toy.export import EXPORT_START
from recipes.toy.packing import PackedBatches
from recipes.toy.vision import SceneBatches
from specllava.config import DecodingConfig
from specllava.distill.batches import ANSWERLESS, CUT, GROUP, UNREADABLE, RowBatches, split
from specllava.distill.chats import ChatEncoder, messages
from specllava.distill.loop import COUNT
from specllava.distill.losses import IGNORE
from specllava.distill.pictures import Pixels, batch_pictures
from specllava.distill.rows import Row, UnusableRowError, index_rows, parse_row
from specllava.distill.self_generated import self_generated_answers, with_target_answers
from specllava.distill.stage import answer_tokens
from specllava.models.images import open_image

# LLaVA-1.5's own template, as llava-hf ships it: it writes a space, and no end, behind an answer.
LLAVA_HF = (
    "{% for message in messages %}{% if message['role'] != 'system' %}{{ message['role'].upper() + ': '}}{% endif %}"
    "{# Render all images first #}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
    "{# Render all text next #}{% if message['role'] != 'assistant' %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] + ' '}}"
    "{% endfor %}"
    "{% else %}{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{% generation %}{{ content['text'] + ' '}}{% endgeneration %}{% endfor %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    write_data(root, 60)
    return root


@pytest.fixture(scope="module")
def indexed(place):
    return index_rows(place / "data.json", place / "images", place / "index")


@cache
def llama_tokenizer():
    """One of Llama's kind: words begin with ▁, a text and whatever follows a special token gets one in front."""
    special = ["<unk>", *SPECIAL]
    made = Tokenizer(bpe.BPE(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=["\n"], show_progress=False)
    made.train_from_iterator([*corpus_text(200), "Why? Because of And? So. Yes."], trainer)
    made.pre_tokenizer = None
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    start = made.token_to_id("<s>")
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", start)])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>",
        extra_special_tokens={"image_token": "<image>"}, clean_up_tokenization_spaces=False,
    )  # fmt: skip


@cache
def processor_like(kind):
    """The toy processor, the same with LLaVA-1.5's template, or with a tokenizer of Llama's kind as well."""
    toy = models.processor()
    if kind == "toy":
        return toy
    return LlavaProcessor(
        image_processor=toy.image_processor, tokenizer=toy.tokenizer if kind == "template" else llama_tokenizer(),
        patch_size=toy.patch_size, vision_feature_select_strategy="default", num_additional_image_tokens=1,
        chat_template=LLAVA_HF,
    )  # fmt: skip


SIZE = (30, 50)  # of a picture, which LLaVA-1.5 does not ask


def encoder(length=400, kind="toy"):
    return ChatEncoder(processor_like(kind), length)


def turns_of(row: Row) -> list[dict]:
    """The messages that decoding would be asked with, each question after the answers before it."""
    image = [{"type": "image", "image": models.picture(0)}] if row.images else []
    roles = ("user", "assistant")
    return [
        {"role": roles[n % 2], "content": [*(image if n == 0 else []), {"type": "text", "text": text}]}
        for n, text in enumerate(row.turns)
    ]


# ------------------------------------------------------------------------------------------------ rows


def test_usable_rows_come_back_as_they_are(place, indexed):
    assert len(indexed) == 60 and not indexed.reasons.counts
    for number, raw in enumerate(rows(60)):
        assert indexed[number] == parse_row(raw)
        said = [part["value"].replace("<image>", "").strip() for part in raw["conversations"]]
        assert list(indexed[number].turns) == said
        assert indexed[number].images == ((raw["image"],) if "image" in raw else ())


def test_exported_scenes_are_a_data_file(tmp_path, capsys):
    assert toy(["export", "--count", "7", "--output", str(tmp_path / "scenes")]) == 0
    data, images = tmp_path / "scenes" / "data.json", tmp_path / "scenes" / "images"
    found = index_rows(data, images, tmp_path / "index")
    assert not found.reasons.counts and len(list(images.iterdir())) == 7
    for number in range(7):
        scene, turns = conversation(EXPORT_START + number)
        assert found[number].turns == tuple(text for turn in turns for text in (turn.question, turn.answer))
        drawn = open_image(images / found[number].images[0])
        assert drawn.tobytes() == draw_scene(scene, 128).convert("RGB").tobytes()
    assert toy(["export", "--output", str(tmp_path / "scenes")]) == 1
    assert f"{data} is there already: choose another --output" in capsys.readouterr().err


def talk(*said, image=None):
    speakers = ("human", "gpt")
    row = {"id": "x", "conversations": [{"from": speakers[n % 2], "value": text} for n, text in enumerate(said)]}
    return row | ({"image": image} if image else {})


BROKEN = {
    "without conversations": [{"id": 1}, 7, None, "text", {"conversations": "hello"}],
    'with a message that is not from "human" or "gpt" with a text as value': [
        {"conversations": [{"from": "system", "value": "x"}, {"from": "gpt", "value": "y"}]},
        {"conversations": [{"from": "human", "value": 3}]},
        {"conversations": ["hello"]},
    ],
    "without an answer": [talk("Why?"), {"conversations": []}],
    "in which human and gpt do not take turns": [
        {"conversations": [{"from": s, "value": "x"} for s in ("human", "human", "gpt")]}
    ],
    "with an empty question or answer": [talk(" ", "Yes."), talk("Why?", " "), talk("<image>", "Cat.", image="0.png")],
    "with <image> in an answer": [talk("Why?", "<image>", image="0.png")],
    "with another number of <image> markers than images": [
        talk("Why?", "So.", image="0.png"), talk("<image> Why?", "So."), talk("<image><image> a", "b", image="0.png"),
    ],
    "with an image that is no path": [talk("<image> a", "b", image={"at": "0.png"}), talk("<image> a", "b", image=[3])],
    "with a missing image": [talk("<image> a", "b", image="none.png"), talk("<image> a", "b", image="nowhere/0.png")],
    "with an unreadable image": [talk("<image> a", "b", image="words.png")],
    "with an image path that leads out of the images directory": [talk("<image> a", "b", image="../data.json")],
}  # fmt: skip


def test_broken_rows_are_counted_by_reason_with_the_first_of_each(place, tmp_path):
    (place / "images" / "words.png").write_text("I am a text.")
    bad = [(reason, raw) for reason, raws in BROKEN.items() for raw in raws]
    good = rows(len(bad))
    mixed = [row for pair in zip(good, (raw for _, raw in bad), strict=True) for row in pair]
    (tmp_path / "data.json").write_text(json.dumps(mixed))
    found = index_rows(tmp_path / "data.json", place / "images", tmp_path / "index")
    assert [found[n] for n in range(len(found))] == [parse_row(raw) for raw in good]
    assert found.reasons.counts == {reason: len(raws) for reason, raws in BROKEN.items()}
    assert found.reasons.first == {
        reason: 2 * next(n for n, (other, _) in enumerate(bad) if other == reason) + 1 for reason in BROKEN
    }
    assert "2 without an answer (first: row 17)" in found.reasons.line()
    lines = "\n".join([*map(json.dumps, mixed[:4]), "", "{broken", "[1]"])
    (tmp_path / "data.jsonl").write_text(lines)
    found = index_rows(tmp_path / "data.jsonl", place / "images", tmp_path / "index2")
    assert len(found) == 2
    assert found.reasons.counts == {"without conversations": 3, "not JSON": 1}


def test_a_leading_answer_and_a_trailing_question_are_dropped():
    raw = {"conversations": [{"from": s, "value": s + str(n)} for n, s in enumerate(("gpt", "human", "gpt", "human"))]}
    assert parse_row(raw).turns == ("human1", "gpt2")


def test_memory_does_not_grow_with_the_file(tmp_path):
    filler = "word " * 200

    def peak(count):
        data = tmp_path / f"{count}.json"
        with data.open("w") as file:
            file.write("[" + ",".join(json.dumps(talk(f"Question {n}?", filler)) for n in range(count)) + "]")
        tracemalloc.start()
        found = index_rows(data, tmp_path, tmp_path / f"index {count}")
        assert found[count - 1].turns[0] == f"Question {count - 1}?"
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most, data.stat().st_size

    (few, size), (many, _) = peak(2_500), peak(10_000)
    assert size > 2_500_000, "larger than any buffer of the reader"
    assert many < 1_000_000
    assert many - few < 16 * 7_500  # eight bytes a row, and an array that grows


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("data.json", "", "is empty"),
        ("data.json", " \n", "is empty"),
        ("data.json", "[]", "is empty"),
        ("data.jsonl", "\n", "is empty"),
        ("data.json", '{"rows": []}', "is not in LLaVA's format: a JSON list of rows is expected, or a .jsonl"),
        ("data.json", '[{"text": "a"}, {"text": "b"}]', "no row can be used: 2 without conversations (first: row 0)"),
        ("data.json", json.dumps(rows(3))[:-200], "is not JSON at row 2: "),
        ("data.json", json.dumps(rows(3)[2:]) + "x", "is not JSON at row 1: "),
    ],
)
def test_a_file_that_is_none_is_refused_in_one_line(place, tmp_path, name, text, words):
    file = tmp_path / name
    file.write_text(text)
    for _ in range(2):  # what the first call left must not be taken for an index
        with pytest.raises(ValueError, match=r"data\.json") as caught:
            index_rows(file, place / "images", tmp_path / "index")
        assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_directory_without_any_of_the_images_is_refused_as_that(tmp_path):
    file = tmp_path / "data.json"
    file.write_text(json.dumps([row for row in rows(9) if "image" in row]))
    with pytest.raises(ValueError, match=f"^no row's image is in {tmp_path}: give the directory that the rows' image"):
        index_rows(file, tmp_path, tmp_path / "index")


# ----------------------------------------------------------------------------------------------- chats


@pytest.mark.parametrize("number", range(0, 40, 8))
def test_labels_are_those_of_the_toy_recipe(number):
    turns = conversation(number)[1]
    row = Row(tuple(t for turn in turns for t in (turn.question, turn.answer)), (1,) + (0,) * (len(turns) - 1), ("x",),
              (True,) * len(turns))  # fmt: skip
    encoded = encoder(10_000)(row, [SIZE])
    ids, labels = encode_chat(models.processor().tokenizer, turns, models.RECIPE.image_tokens)
    assert (encoded.ids, encoded.labels, encoded.images, encoded.cut) == (ids, labels, 1, False)


@pytest.mark.parametrize("kind", ["toy", "template", "llama"])
@pytest.mark.parametrize("number", range(0, 30, 6))
def test_every_answer_is_labelled_after_exactly_what_decoding_would_read(indexed, kind, number):
    row = indexed[number]
    encode = encoder(10_000, kind)
    encoded = encode(row, [SIZE] * len(row.images))
    bundle = replace(models.pair(None), processor=encode.processor)
    end = encode.processor.tokenizer.eos_token_id
    place = 0
    for turn in range(1, len(row.turns), 2):
        asked = bundle.prompt(None, turns_of(row)[:turn]).input_ids[0].tolist()
        assert encoded.ids[: len(asked)] == asked
        assert all(label == IGNORE for label in encoded.labels[place : len(asked)])
        stop = encoded.labels.index(end, len(asked))
        assert encode.processor.tokenizer.decode(encoded.labels[len(asked) : stop]).strip() == row.turns[turn]
        assert encoded.ids[len(asked) : stop] == encoded.labels[len(asked) : stop]
        place = stop + 1
    assert all(label == IGNORE for label in encoded.labels[place:])


@pytest.mark.parametrize("kind", ["toy", "template", "llama"])
def test_an_answer_that_did_not_end_teaches_no_end(kind):
    row = Row(("Why?", "Because of", "And?", "So."), (0, 0), (), (False, True))
    encoded = encoder(400, kind)(row, [])
    assert encoded.labels.count(processor_like(kind).tokenizer.eos_token_id) == 1


def test_the_end_that_is_taught_is_one_that_decoding_stops_at():
    """The tokenizer named one end, the generation settings another: the draft was taught the one that ends nothing."""
    row = Row(("Why?", "Because."), (0,), (), (True,))
    own = processor_like("llama").tokenizer.eos_token_id
    for ends, end in ((None, own), ({own, 1}, own), ({7, 9}, 7)):
        encode = ChatEncoder(processor_like("llama"), 400, None if ends is None else frozenset(ends))
        assert encode(row, []).labels[-1] == end


@pytest.mark.parametrize(
    ("text", "reason"), [("Why</s>?", "with a special token in a question"), ("x " * 3000, "do not fit the context")]
)
def test_a_question_that_cannot_be_put_is_left_out_by_its_reason(place, text, reason):
    """The reason was told by a word in an error's text, and was an image that breaks off otherwise."""
    with pytest.raises(UnusableRowError, match=reason):
        with_target_answers(
            models.pair(None), Row((text, "So."), (0,), (), (True,)), place, DecodingConfig(drafter="none")
        )


def test_a_row_is_cut_and_never_through_a_picture():
    row = Row(("What?", "A red bus.", "And there?", "Two cats."), (1, 2), ("a", "b", "c"), (True, True))
    whole = encoder(10_000)(row, [SIZE] * 3)
    marker, patches = models.processor().image_token_id, models.RECIPE.image_tokens
    for length in range(16, len(whole.ids) + 2, 3):
        encoded = encoder(length)(row, [SIZE] * 3)
        assert len(encoded.ids) == len(encoded.labels) <= length
        assert encoded.ids == whole.ids[: len(encoded.ids)] and encoded.labels == whole.labels[: len(encoded.ids)]
        assert encoded.ids.count(marker) == encoded.images * patches
        assert encoded.cut == (length < len(whole.ids))
        assert length - len(encoded.ids) < patches or not encoded.cut


# --------------------------------------------------------------------------------------------- batches


def batches(rows, place, batch=3, seed=0, length=400, **kwargs):
    encode = encoder(length)
    numbers = kwargs.pop("numbers", torch.arange(len(rows)))
    see = Pixels(encode.processor, models.target().config, place / "images")
    return RowBatches(rows, numbers, encode, batch, seed, see, place / "images")


def test_a_batch_is_a_function_of_its_number(indexed, place):
    first, again = batches(indexed, place), batches(indexed, place)
    first(3)
    for number in (40, 17, 0, 33):
        one, other = first(number), again(number)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_batches_reach_a_worker_process_that_is_not_forked(indexed, place):
    """They held a cache of their own bound method and a closure, which cannot be pickled: no training on macOS, nor
    on Linux from Python 3.14 on."""
    made = batches(indexed, place)
    before = made(17)  # with whatever is held by then
    again = pickle.loads(pickle.dumps(made))(17)
    assert before.keys() == again.keys() and all(torch.equal(before[key], again[key]) for key in before)


@pytest.mark.parametrize(
    "make",
    [
        lambda processor, patches: ChatBatches(processor, 2, patches),
        lambda processor, patches: PackedBatches(processor, 2, patches, TALKING, 5),
        lambda processor, patches: SceneBatches(processor.image_processor, 2, patches),
    ],
)
def test_batches_of_the_toy_recipe_reach_a_worker_process_that_is_not_forked(make):
    made = make(models.processor(), models.RECIPE.image_tokens)
    before, again = made(1), pickle.loads(pickle.dumps(made))(1)
    assert before.keys() == again.keys() and all(torch.equal(before[key], again[key]) for key in before)


def test_every_row_is_read_once_each_time_round(indexed, place):
    made = batches(indexed, place, seed=4)
    size = len(indexed)
    orders = [[made.row_at(position) for position in range(start, start + size)] for start in (0, size, 2 * size)]
    assert all(sorted(order) == list(range(size)) for order in orders)
    assert orders[0] != orders[1] != orders[2]
    window = sorted(p for batch in made._make_window(1) for p in batch)
    assert window == list(range(GROUP * 3, 2 * GROUP * 3))


def test_pictures_stand_in_the_order_of_their_slots(indexed, place):
    marker, patches = models.processor().image_token_id, models.RECIPE.image_tokens
    mixed = 0
    for number in range(12):
        batch = batches(indexed, place)(number)
        slots = (batch["input_ids"] == marker).sum(1)
        pictures = batch_pictures(batch)
        assert int(slots.sum()) == len(pictures) * patches
        assert slots.tolist() == [patches * count for count in batch.get("images", torch.zeros_like(slots)).tolist()]
        mixed += bool((slots == 0).any() and (slots > 0).any())
    assert mixed  # rows with and without a picture do share a batch


def test_rows_are_held_out_by_the_seed(indexed):
    learnt, held_out = split(indexed, 7, 3)
    assert sorted([*learnt.tolist(), *held_out.tolist()]) == list(range(60)) and len(held_out) == 7
    assert torch.equal(held_out, split(indexed, 7, 3)[1]) and not torch.equal(held_out, split(indexed, 7, 4)[1])
    with pytest.raises(ValueError, match="60 usable rows are too few for 60 held out and 1 to learn from"):
        split(indexed, 60, 0)


def test_a_picture_that_breaks_off_is_counted_and_the_next_row_stands_in(tmp_path):
    write_data(tmp_path, 12)
    found = index_rows(tmp_path / "data.json", tmp_path / "images", tmp_path / "index")
    torn = tmp_path / "images" / "4.png"
    torn.write_bytes(torn.read_bytes()[:200])
    made = batches(found, tmp_path, batch=1)
    seen = [made(number) for number in range(GROUP)]
    met = sum(made.row_at(position) == 4 for position in range(GROUP))
    assert met >= 1
    assert sum(int(batch[f"{COUNT}{UNREADABLE}"]) for batch in seen) >= met
    assert all(len(batch["input_ids"]) == 1 for batch in seen)


def test_long_rows_are_counted(indexed, place):
    long = batches(indexed, place, length=2_000)(0)
    assert int(long[f"{COUNT}{CUT}"]) == int(long[f"{COUNT}{ANSWERLESS}"]) == 0
    short = [batches(indexed, place, length=48)(number) for number in range(6)]
    assert sum(int(batch[f"{COUNT}{CUT}"]) for batch in short) > 6
    assert sum(int(batch[f"{COUNT}{ANSWERLESS}"]) for batch in short) > 0
    assert all(answer_tokens(batch) > 0 for batch in short)
    with pytest.raises(ValueError, match="100 rows one after the other have no answer within --length 16"):
        batches(indexed, place, length=16, numbers=torch.tensor([0, 1]))(0)


# --------------------------------------------------------------------------------- the target's answers


def test_the_targets_own_answers_are_what_it_says(indexed, place):
    config = DecodingConfig(max_new_tokens=8)
    bundle = models.pair("mixed")
    row = indexed[0]
    found = with_target_answers(bundle, row, place / "images", config)
    image = place / "images" / row.images[0]
    asked = [{"type": "image", "image": image}, {"type": "text", "text": row.turns[0]}]
    alone = models.decode(bundle, bundle.prompt(None, [{"role": "user", "content": asked}]),
                          DecodingConfig(max_new_tokens=8, drafter="none"))  # fmt: skip
    assert found.turns[:2] == (row.turns[0], alone.text)
    assert found.ended == (False,)  # nothing ends an answer of this target, so the limit does, and the row with it


def test_answers_go_on_where_a_killed_call_stopped(indexed, place, tmp_path, monkeypatch):
    bundle, config, accelerator = models.pair("mixed"), DecodingConfig(max_new_tokens=5), Accelerator(cpu=True)
    numbers = [3, 0, 5, 8, 1]
    given = bundle, indexed, numbers, place / "images", config
    whole = self_generated_answers(*given, tmp_path / "whole", accelerator)
    assert [whole[n].turns[0] for n in range(5)] == [indexed[n].turns[0] for n in numbers]
    part = tmp_path / "killed" / "answers-0-of-1.jsonl"
    part.parent.mkdir()
    lines = (tmp_path / "whole" / part.name).read_bytes().splitlines(keepends=True)
    part.write_bytes(b"".join(lines[:3]) + lines[3][:20])  # killed in the middle of a line
    asked = []
    monkeypatch.setattr(
        "specllava.distill.self_generated.with_target_answers",
        lambda *args: asked.append(args[1]) or with_target_answers(*args),
    )
    resumed = self_generated_answers(*given, tmp_path / "killed", accelerator)
    assert len(asked) == 2
    assert [resumed[n] for n in range(5)] == [whole[n] for n in range(5)]


def test_a_row_of_many_megabytes_is_cut_before_it_is_tokenised(monkeypatch: pytest.MonkeyPatch):
    """Its tokens are those of the whole, of which a hundred times as many were made and thrown away."""
    text = "A red bus stands on the left. " * 4_000
    row = Row((text, text), (0,), (), (True,))
    encode = encoder(40)
    whole = encode.processor.tokenizer(encode._text(messages(row), ()))["input_ids"]
    given, tokenizer = [], type(encode.processor.tokenizer)
    own = tokenizer.__call__
    monkeypatch.setattr(
        tokenizer, "__call__", lambda self, read, **options: (given.append(len(read)), own(self, read, **options))[1]
    )
    encoded = encode(row, [])
    assert encoded.ids == whole[:40] and encoded.cut and set(encoded.labels) == {IGNORE}
    assert max(given) < 10_000 < len(text)
