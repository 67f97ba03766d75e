"""Training data from the target's own greedy answers to the questions of a data file (self-data
distillation, as in MASSV, arXiv 2505.10526).

They are decoded speculatively by the project's one decode loop, and each is on disk before the next begins;
after a kill the next call resumes there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from accelerate import Accelerator
from tqdm.auto import tqdm

from specllava.config import DecodingConfig
from specllava.distill.rows import Row, Rows, UnusableRowError, open_rows, write_rows
from specllava.engine.pool import KVCaches
from specllava.models.tokens import Message
from specllava.models.tokens import TextError, escape_special_tokens, special_tokens
from specllava.pair import Pair
from specllava.prompt import NoRoomError
from specllava.spec_decode.loop import Lane, stream


def self_generated_answers(
    pair: Pair,
    rows: Rows,
    numbers: Sequence[int],
    images: Path,
    config: DecodingConfig,
    directory: Path,
    accelerator: Accelerator,
) -> Rows:
    """Return the rows ``numbers`` with the target's answers in place of theirs; several processes share the work.

    A row whose picture cannot be read, or whose questions outgrow the context before the first answer, is counted
    and left out.
    """
    if not (directory / "reasons.json").is_file():
        directory.mkdir(parents=True, exist_ok=True)
        rank, share = accelerator.process_index, accelerator.num_processes
        _answer(pair, rows, numbers[rank::share], images, config, _part(directory, rank, share), rank == 0)
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            write_rows(directory, _in_order([_part(directory, rank, share) for rank in range(share)]))
        accelerator.wait_for_everyone()
    return open_rows(directory)


def _part(directory: Path, rank: int, share: int) -> Path:
    return directory / f"answers-{rank}-of-{share}.jsonl"


def _answer(
    pair: Pair, rows: Rows, numbers: Sequence[int], images: Path, config: DecodingConfig, file: Path, show_bar: bool
) -> None:
    """Append a line for each row that the file lacks."""
    done = _whole_lines(file)
    with file.open("a", encoding="utf-8") as lines:
        left = tqdm(
            numbers[done:], "the target's answers", len(numbers), initial=done, unit="row", disable=not show_bar
        )
        for number in left:
            try:
                row = with_target_answers(pair, rows[number], images, config)
                line = row.as_json()
            except UnusableRowError as error:
                line = {"unusable": str(error)}
            lines.write(json.dumps(line, ensure_ascii=False) + "\n")
            lines.flush()


def _whole_lines(file: Path) -> int:
    """Count the whole lines of a file, and cut off an unfinished one that a kill left."""
    if not file.is_file():
        return 0
    with file.open("rb+") as lines:
        count = whole = 0
        for line in lines:
            if line.endswith(b"\n"):
                count, whole = count + 1, whole + len(line)
        lines.truncate(whole)
    return count


def _in_order(parts: Sequence[Path]) -> Iterator[Row | UnusableRowError]:
    """Yield the rows of all processes' files in the order in which they were distributed."""
    files = [part.open(encoding="utf-8") for part in parts]
    while lines := [line for file in files if (line := file.readline())]:
        for line in lines:
            data = json.loads(line)
            if "unusable" in data:
                yield UnusableRowError(data["unusable"])
            else:
                yield Row(*(tuple(data[name]) for name in ("turns", "shown", "images", "ended")))
    for file in files:
        file.close()


def with_target_answers(pair: Pair, row: Row, images: Path, config: DecodingConfig) -> Row:
    """Return a row with the target's greedy answers, each decoded after its own earlier ones.

    An answer that was cut at the limit ends the row and has no end token as a label.

    Raises:
        UnusableRowError: it has no answer; the message is the reason.
    """
    chat: list[Message] = []
    special = special_tokens(pair.processor.tokenizer)
    caches = KVCaches(pair.engines)
    ended: list[bool] = []
    pictures = iter(row.images)
    for number in range(0, len(row.turns), 2):
        parts = [
            {"type": "image", "image": images / next(pictures)} for _ in range(row.images_per_question[number // 2])
        ]
        chat.append({"role": "user", "content": [*parts, {"type": "text", "text": row.turns[number]}]})
        try:
            prompt = pair.prompt(None, chat, config.max_new_tokens)
        except ValueError as error:
            if ended:
                break
            raise UnusableRowError(_reason(error)) from error
        lane = Lane("answer", config, prompt)
        trace = pair.collect(lane, stream(pair.request(lane, caches, record=False)))
        if not trace.text:
            break
        chat.append({"role": "assistant", "content": escape_special_tokens(trace.text, special)})
        ended.append(trace.finish_reason == "eos")
        if not ended[-1]:
            break
    if not ended:
        raise UnusableRowError("to which the target says nothing")
    answered_chat = chat[: 2 * len(ended)]
    turns = (m["content"] if isinstance(m["content"], str) else m["content"][-1]["text"] for m in answered_chat)
    image_counts = row.images_per_question[: len(ended)]
    return Row(tuple(turns), image_counts, row.images[: sum(image_counts)], tuple(ended))


def _reason(error: ValueError) -> str:
    """Return the reason why a question could not be encoded, as in the counts of rows."""
    match error:
        case NoRoomError():
            return "do not fit the context"
        case TextError():
            return "with a special token in a question"
    return "with an image that breaks off"
