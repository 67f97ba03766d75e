"""Two ways to answer, A and B, on one question or many: the part of ``compare`` with ``--a`` and ``--b``."""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import tyro
from rich.console import Console

from specllava.cli.options import (
    AnswerOptions,
    DecodingOptions,
    PairOptions,
    announce_loading,
    check_outputs,
    load_pair,
    picture_beside,
    print_line,
    print_notice,
    report_unused_draft,
    typed_options,
    with_defaults,
    with_fallback_drafter,
    write_json,
)
from specllava.cli.parsing import UsageError, parse
from specllava.cli.question_file import read_questions
from specllava.core.config import DecodingConfig
from specllava.core.files import write_whole
from specllava.core.question import Question
from specllava.core.race_file import write_zip
from specllava.core.scenes import SCENES, scene_images
from specllava.findings.comparison_tables import race_files, summary_lines, to_csv, to_json, to_markdown
from specllava.models.drafts.draft_reading import DraftReading
from specllava.models.media.images import read_size

if TYPE_CHECKING:
    from specllava.findings.comparison import PairedComparison
    from specllava.lab.comparison import Side
    from specllava.pair import Pair


@tyro.conf.configure(tyro.conf.OmitArgPrefixes)
@dataclass(frozen=True)
class ComparisonOptions:
    """Two ways to answer, and many questions."""

    a: str | None = None
    """Options of side A in place of the common ones, in quotes: --a "--rule chain --depth 6". Those that choose a pair
    may be among them. Without --a and --b, A is the target alone."""

    b: str | None = None
    """The same for side B."""

    data: Path | None = None
    """Ask the questions of this file, in place of --image and --prompt: a .jsonl, a row {"image", "prompt"} or one in
    LLaVA's format, of which the first question is asked."""

    images: Path | None = None
    """Directory that the rows' image paths begin in; the file's own without it."""

    scenes: int | None = None
    """Ask about so many toy scenes instead."""

    first: int | None = None
    """Only the first so many questions of --data."""

    csv: Path | None = None
    """Write a row per question to this file."""

    markdown: Path | None = None
    """Write totals and a row per question to this file."""

    traces: Path | None = None
    """Write the race of every question, with its picture, to this zip archive: trace view opens them."""

    @property
    def chosen(self) -> bool:
        """Whether any of these options is given."""
        return self != ComparisonOptions()


@dataclass(frozen=True)
class SideOptions:
    """Options of one side."""

    pair: PairOptions = field(default_factory=PairOptions)
    decoding: DecodingOptions = field(default_factory=DecodingConfig)


def run_comparison(
    console: Console, common: AnswerOptions, options: ComparisonOptions, image: Path | None, prompt: str | None
) -> None:
    """Compare both sides on the questions that are asked for; print the totals and write the files.

    Raises:
        ValueError: bad options, before a model is loaded; bad input. One line.
        KeyboardInterrupt: Ctrl-C, once what is finished was printed and written.
    """
    outputs = {"csv": options.csv, "markdown": options.markdown, "traces": options.traces}
    check_outputs(json=common.json, trace=common.trace, **outputs)
    ask, count = _questions(options, image, prompt)
    if common.trace and count > 1:
        raise ValueError(f"--trace holds one race, and there are {count} questions: write them to --traces")
    chosen = side_options(common, options)
    sides = load_sides(*chosen)
    from tqdm.auto import tqdm

    from specllava.lab.comparison import compare_questions

    found = None
    with tqdm(total=count, disable=None) as bar:
        try:
            asked = (replace(one, system=common.system) for one in ask())
            for found in compare_questions(asked, count, *sides, target_only=count == 1):
                bar.update(len(found.rows) - bar.n)
        except KeyboardInterrupt:
            if found is None or not found.rows:
                raise
            bar.close()
            _report(console, common, options, found, sides, ask())
            raise
    assert found is not None, "a comparison yields its beginning"
    _report(console, common, options, found, sides, ask())
    if count == 1:
        race = json.loads(found.rows[0].race or "{}")
        for title, side in (("A", "a"), ("B", "b")):
            console.print(f"[bold]{title}[/]")
            console.print(race[side]["trace"]["text"] + "\n", markup=False, highlight=False)
        if common.trace:
            beside = None if image is None else picture_beside(image, common.trace)
            write_whole(common.trace, json.dumps(race | {"image": beside}, ensure_ascii=False) + "\n")


def _questions(
    options: ComparisonOptions, image: Path | None, prompt: str | None
) -> tuple[Callable[[], Iterable[Question]], int]:
    """Return a function that yields the questions, and how many they are."""
    ways = {"--image and --prompt": image or prompt, "--data": options.data, "--scenes": options.scenes}
    given = [name for name, value in ways.items() if value is not None]
    if len(given) != 1:
        raise ValueError(f"ask with {', or '.join(ways)}: given are {' and '.join(given) or 'none of them'}")
    if options.data is None and (options.images or options.first is not None):
        raise ValueError("--images and --first belong to --data")
    if options.data is not None:
        questions = read_questions(options.data, options.images, first=options.first)
        return lambda: questions, len(questions)
    if options.scenes is not None:
        most = len(scene_images("held-out"))
        if not 1 <= options.scenes <= most:
            raise ValueError(f"--scenes is {options.scenes}: 1 to {most} are possible")
        scenes = read_questions(SCENES, first=options.scenes)
        return lambda: scenes, options.scenes
    if prompt is None:
        raise ValueError("--image needs --prompt, the question about it")
    if image is not None:
        read_size(image)
    return lambda: [Question(prompt, image, None if image is None else image.name)], 1


def side_options(common: AnswerOptions, options: ComparisonOptions) -> tuple[SideOptions, SideOptions]:
    """Parse the options of both sides on top of the common ones; A is the target alone where neither is given."""
    base = SideOptions(common.pair, common.decoding)
    if options.a is None and options.b is None:
        base = replace(base, decoding=with_defaults(base.decoding, base.pair, common.typed))
        return replace(base, decoding=replace(base.decoding, drafter="none")), base
    return _parse_side("a", options.a, base, common.typed), _parse_side("b", options.b, base, common.typed)


def _parse_side(name: str, text: str | None, base: SideOptions, typed: frozenset[str]) -> SideOptions:
    try:
        given = shlex.split(text or "")
        side: SideOptions = parse(SideOptions, given, prog=f"--{name}", default=base)
    except UsageError as error:
        raise ValueError(f"--{name}: {error}") from error
    except ValueError as error:  # quotes without an end
        raise ValueError(f"--{name} {text!r}: {error}") from error
    return replace(side, decoding=with_defaults(side.decoding, side.pair, typed | typed_options(given)))


def load_sides(a: SideOptions, b: SideOptions) -> tuple[Side, Side]:
    """Load the pairs of both sides; a target that they share is loaded once.

    Raises:
        ValueError: as :func:`specllava.cli.options.load_pair`.
    """
    one = load_pair(a.pair)
    target, draft, reading = b.pair.sources
    if b.pair == a.pair:
        other = one
    elif draft is not None and (str(target), _machine(b.pair)) == (str(a.pair.sources[0]), _machine(a.pair)):
        announce_loading(str(draft))
        other = one.with_draft(str(draft), tell=print_notice, **asdict(reading))
    else:
        other = load_pair(b.pair)
    from specllava.lab.comparison import Side

    return Side(one, _decoding(one, a)), Side(other, _decoding(other, b))


def _decoding(pair: Pair, side: SideOptions) -> DecodingConfig:
    return with_fallback_drafter(pair, side.decoding, fallback="prompt-lookup")


def _machine(chosen: PairOptions) -> PairOptions:
    """Return the options but for those that name models."""
    return replace(chosen, preset="", target=None, draft=None, **asdict(DraftReading()))


def _pictures(questions: Iterable[Question]) -> Iterator[tuple[str, bytes]]:
    """Yield the pictures of questions as files, under the names that their races know them by."""
    from specllava.lab.comparison import picture_name

    for number, question in enumerate(questions, start=1):
        if name := picture_name(question, number):
            assert isinstance(question.image, Path), "files and options name pictures"
            yield name, question.image.read_bytes()


def _report(
    console: Console,
    common: AnswerOptions,
    options: ComparisonOptions,
    found: PairedComparison,
    sides: tuple[Side, Side],
    questions: Iterable[Question],
) -> None:
    """Print the totals, and write what the options ask for."""
    for letter, name in (("A", found.a), ("B", found.b)):
        print_line(console, f"{letter}: {name}")
    for line in summary_lines(found):
        print_line(console, line)
    for side, totals in zip(sides, found.totals, strict=True):
        report_unused_draft(side.pair.draft_name, side.config.drafter, totals)
    if options.csv:
        write_whole(options.csv, to_csv(found))
    if options.markdown:
        write_whole(options.markdown, to_markdown(found))
    if options.traces:
        archive = io.BytesIO()
        write_zip(archive, [*race_files(found), *_pictures(islice(questions, len(found.rows)))])
        write_whole(options.traces, archive.getvalue())
    settings = {
        name: {"setting": asdict(side.pair.info), "config": asdict(side.config)}
        for name, side in zip("ab", sides, strict=True)
    }
    write_json(common.json, {**to_json(found), "sides": settings})
