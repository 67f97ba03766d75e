"""Commands: generate, compare, bench, distill, draft, presets, trace and site. No torch until a pair is loaded."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import tyro
from rich.console import Console

from specllava.cli.options import (
    AnswerOptions,
    DecodingOptions,
    PairOptions,
    Typed,
    announce_loading,
    check_outputs,
    hide_progress_bars,
    load_pair,
    print_line,
    print_notice,
    report_unused_draft,
    write_json,
)
from specllava.config import DecodingConfig
from specllava.distill.config import DistillConfig, Job
from specllava.files import (
    PAGE,
    PAGE_HINT,
    SCENES,
    Split,
    cached,
    check_free,
    scene_images,
    shipped,
    whole_directory,
    write_whole,
)
from specllava.metrics import compare, pool_totals, speedup, summarise
from specllava.models.presets import ASSETS, Tree, presets
from specllava.race_file import race_json
from specllava.trace import SPECULATIVE, TARGET_ONLY

if TYPE_CHECKING:
    from specllava.bench import Runner
    from specllava.distill.new_draft import MadeDraft
    from specllava.metrics import Comparison
    from specllava.pair import Pair
    from visual.player.recorded import Recorded


@dataclass(frozen=True, kw_only=True)
class Generate(AnswerOptions):
    """Answer a question speculatively, about pictures or none."""

    def run(self, console: Console) -> None:
        pair, media, decoding = self.prepare(fallback="none")
        # Without a trace file nobody reads what the target computed for every node: it is not recorded.
        trace = pair.generate(media, self.messages, decoding, record=self.trace is not None)
        print_line(console, trace.text)
        report_unused_draft(pair.draft_name, decoding.drafter, summarise([trace]))
        name = "target_only" if decoding.drafter == "none" else "speculative"
        write_json(self.json, {name: {"token_ids": list(trace.token_ids), "text": trace.text}})
        if self.trace:
            write_whole(self.trace, trace.to_json())


@dataclass(frozen=True, kw_only=True)
class Compare(AnswerOptions):
    """Answer with and without speculation, and say whether the answers are the same."""

    def run(self, console: Console) -> None:
        pair, media, decoding = self.prepare(fallback="prompt-lookup")
        traces = pair.compare(media, self.messages, decoding)
        plain, fast = traces[TARGET_ONLY], traces[SPECULATIVE]
        verdict, reference, candidate = compare(plain, fast), summarise([plain]), summarise([fast])
        for title, trace in (("target only", plain), ("speculative", fast)):
            console.print(f"[bold]{title}[/]")
            print_line(console, trace.text + "\n")
        console.print(_verdict_line(verdict) if decoding.keeps_tokens else _DRAWN)
        if reference.target_passes and candidate.target_passes:
            console.print(
                f"tau {candidate.tau:.2f} tokens per target pass, {candidate.target_passes} passes"
                f" instead of {reference.target_passes}"
            )
            console.print(
                f"{candidate.tokens_per_second:.0f} instead of {reference.tokens_per_second:.0f} tokens/s:"
                f" {speedup(reference, candidate):.2f} times as fast"
            )
        else:
            console.print("the prompt's own pass gave the whole answer: nothing was guessed, and no speed compares")
        report_unused_draft(pair.draft_name, decoding.drafter, candidate)
        lanes = {"target_only": plain, "speculative": fast}
        write_json(
            self.json,
            {name: {"token_ids": list(t.token_ids), "text": t.text} for name, t in lanes.items()}
            | {"identical": verdict.identical},
        )
        if self.trace:
            folder = self.trace.resolve().parent
            beside = [one.name for one in self.image if one.resolve().parent == folder]
            write_whole(self.trace, race_json(plain, fast, beside[0] if len(beside) == len(self.image) == 1 else None))


_DRAWN = "guesses drawn by chance: both answers have the target's distribution"


def _verdict_line(verdict: Comparison) -> str:
    """Write how two answers compare: identical, or where they part and by what margin of the target."""
    if verdict.identical:
        return f"identical: {verdict.tokens} of {verdict.tokens} tokens"
    kind = "near-tie" if verdict.near_tie else "DIFFERENT"
    margin = "one answer goes on" if verdict.margin is None else f"margin of the target {verdict.margin:.2g}"
    return f"{kind} at token {verdict.position}: {margin}"


@dataclass(frozen=True)
class Bench:
    """Time every lane on the same prompts, compare their tokens, and print what they were worth."""

    prompts: int = 40
    """How many rows of --data, or toy scenes. A dialogue is one."""

    data: Path | None = None
    """Ask the questions of this file in place of toy scenes: LLaVA's conversations, MMSpec's rows, or rows of {"image",
    "prompt", "category"}, as .json or .jsonl."""

    images: Path | None = None
    """Directory that the rows' image paths begin in; without it images beside the file, else the file's own."""

    turns: int = 3
    """Questions of one dialogue that are asked at most."""

    split: Split = "held-out"
    """Toy scenes with known combinations only, or each with one that training never named."""

    rounds: int = 3
    """Times that every lane answers every prompt."""

    lanes: tuple[str, ...] = ()
    """Only these beside target-only, such as: chain entropy. All without it."""

    json: Path | None = None
    """Write the report to this file."""

    pair: PairOptions = field(default_factory=PairOptions)
    decoding: DecodingOptions = field(default_factory=DecodingConfig)
    typed: Typed = frozenset()
    program: ClassVar[str] = "specllava"
    alone: ClassVar[tuple[str, ...]] = (TARGET_ONLY,)

    def run(self, console: Console) -> None:
        for name, value in (("prompts", self.prompts), ("rounds", self.rounds), ("turns", self.turns)):
            if value < 1:
                raise ValueError(f"--{name} is {value}: at least 1 is needed")
        if self.data is None and self.images is not None:
            raise ValueError("--images belongs to --data")
        if chosen := {"rule", "drafter"} & self.typed:
            raise ValueError(f"every lane has its own --{min(chosen)}: choose lanes with --lanes")
        if self.data is None and self.prompts > (most := len(scene_images(self.split))):
            raise ValueError(f"--prompts is {self.prompts}: {most} {self.split} toy scenes ship; --data takes more")
        check_outputs(json=self.json)
        from specllava.distill.rows import data_dialogues

        split = self.split if self.data is None else None
        dialogues = data_dialogues(self.data or SCENES, self.images, self.prompts, self.turns, split)
        pair = load_pair(self.pair)
        from specllava.bench import Plan, category_results, measure, report_of, results_of, tables_of

        source = f"{split} toy scenes" if self.data is None else self.data.name
        command = shlex.join(["python", "-m", self.program, *sys.argv[1:]])
        plan = Plan(source, self.rounds, command=command, alone=self.alone)
        measured = measure(pair, dialogues, self.runners(pair), self.config(pair), plan)
        results, categories, setting = results_of(measured), category_results(measured), measured.setting
        ran = filter(None, (setting.device, setting.dtype, setting.passes))
        title = ", ".join((f"{len(measured.dialogues)} prompts", f"{measured.rounds} rounds", *ran))
        for table in tables_of(title, results, categories):
            console.print(table)
        machine = measured.machine.get("gpu") or measured.machine.get("cpu")
        print_line(console, f"speed-ups are over {measured.reference}; {machine}")
        guessed = pool_totals(lane.totals for lane in results.values() if lane.totals.draft_passes)
        report_unused_draft(setting.draft, "model", guessed)
        write_json(self.json, report_of(measured, results, categories))

    def config(self, pair: Pair) -> DecodingConfig:
        """Return options of decoding with the device's number of nodes, where the command line says nothing else."""
        if pair.nodes is None or "nodes" in self.typed:
            return self.decoding
        return replace(self.decoding, nodes=pair.nodes)

    @property
    def tree(self) -> Tree:
        """Options with which others measured the preset's draft, where the command line says nothing else."""
        return {name: value for name, value in self.pair.tree.items() if name not in self.typed}

    def runners(self, pair: Pair) -> dict[str, Runner]:
        """Return a runner for each lane."""
        from specllava.bench import runners_of

        return runners_of(pair, self.config(pair), self.lanes, self.tree)


@dataclass(frozen=True, kw_only=True)
class Distill(Job):
    """Teach a draft to guess what its target says, on data in LLaVA's format; may be killed and repeated."""

    training: Annotated[DistillConfig, tyro.conf.OmitArgPrefixes] = field(default_factory=DistillConfig)

    def run(self, console: Console) -> None:
        announce_loading(self.target if self.draft is None else f"{self.target} and {self.draft}")
        from specllava.distill.train import distil_files
        from visual.figures import write_page

        hide_progress_bars()
        report = distil_files(self, partial(print_line, console))
        if report is None:  # another process prints it
            return
        write_page(report, self.output / "curve.html")
        print_line(console, f"{report.state}: {self.output / 'draft'} is the draft of step {report.best.step}")


@dataclass(frozen=True, kw_only=True)
class _Make:
    """What every command needs that writes a draft."""

    target: str
    """The model that it drafts for: an id of the hub, or a directory."""

    output: Path
    """Directory to write; it must not exist."""


@dataclass(frozen=True, kw_only=True)
class Init(_Make):
    """Make a draft of a plain language model, which gets a fresh projector, or of somebody's stand-alone LLaVA.

    Its vocabulary is aligned to the target's. A LLaVA's tower is dropped if it is the target's.
    """

    source: str
    """The model, with the target's tokens: an id of the hub such as JackFram/llama-68m, or a directory."""

    text_only: bool = False
    """No projector: the draft of a language model never sees a picture; it can be used untrained."""

    seed: int = 0
    """Of the projector's first weights."""

    def run(self, console: Console) -> None:
        announce_loading(f"{self.source} and {self.target}")
        from specllava.distill.new_draft import init_draft

        hide_progress_bars()
        _print_draft(console, init_draft(self.source, self.target, self.output, self.text_only, self.seed))


@dataclass(frozen=True, kw_only=True)
class ExportDraft(_Make):
    """Write an EAGLE-3 draft in the layout that the inference engines vLLM and SGLang load."""

    draft: str
    """The draft: a directory, or an id of the hub."""

    def run(self, console: Console) -> None:
        announce_loading(f"{self.draft} and the configuration of {self.target}")
        from specllava.distill.export import export_draft

        hide_progress_bars()
        _print_draft(console, export_draft(self.draft, self.target, self.output, print_notice))


def _print_draft(console: Console, made: MadeDraft) -> None:
    for line in (*made.notes, f"{made.directory}: a draft of {made.parameters / 1e6:.2f} million parameters"):
        print_line(console, line)


NOTES = (
    "Memory is that of both models' weights in bfloat16 and of caches for 4,096 tokens, by the published"
    " configurations; --quantization int8 or int4 stores the target's decoder in fewer bits on a GPU. No file of the"
    " hub was downloaded here, and nothing of it measured.",
    "A draft of your own, or another published one: --target and --draft; docs/models.md compares them.",
)


@dataclass(frozen=True)
class Presets:
    """List the pairs that --preset names: what each takes, what is known of it, and which fit this machine."""

    def run(self, console: Console) -> None:
        import torch

        from specllava.models.memory import GB, free_bytes

        free = free_bytes(torch.device("cuda" if torch.cuda.is_available() else "cpu"), spread=False) / GB
        for line in [*listing(free), ""]:
            print_line(console, line)
        for note in NOTES:
            print_line(console, note)


def listing(free: float) -> list[str]:
    """Return the lines of the list for people.

    Args:
        free: GB of memory.
    """
    lines = [f"{free:.1f} GB of memory are free here. Sizes in GB.", "", _row("preset", "download", "bfloat16", "fits")]
    for name, preset in presets().items():
        size = "" if preset.local else f"{preset.memory:.1f}"
        download = f"{preset.download:.1f}" if not preset.local else "fetched" if preset.fetched else "ships"
        fits = preset.missing == "" and preset.memory <= free
        lines.append(_row(name, download, size, "yes" if fits else "no"))
        draft = "no draft: name one with --draft" if preset.draft is None else _location(preset.draft)
        lines.append(f"    {_location(preset.target)} + {draft}")
        if known := "; ".join(one for one in (preset.measured, preset.licence) if one):
            lines.append(f"    {known}")
    return lines


def _row(name: str, download: str, size: str, fits: str) -> str:
    return f"{name:<28}{download:>9}{size:>10}   {fits}"


def _location(source: object) -> str:
    """Write where a model is: its id of the hub, or its directory in the project or, as most have it, in the cache."""
    return str(source).removeprefix(f"{ASSETS.parent}/").replace(str(cached("")), "~/.cache/specllava")


@dataclass(frozen=True)
class View:
    """Open the page on a saved race or trace, as compare --trace and the page itself write it."""

    file: tyro.conf.Positional[Path]
    """Race file."""

    port: int = 7860
    """Where the page is served."""

    def run(self, console: Console) -> None:
        _read_race(self.file)  # refused here, in one line, before a server starts
        if not all(map(find_spec, PAGE)):
            raise ValueError(PAGE_HINT)
        page = [sys.executable, str(shipped("app.py")), "--open", str(self.file.resolve()), "--port", str(self.port)]
        code = subprocess.run(page, check=False).returncode
        if code:
            raise ValueError(f"the page ended with exit code {code}")


@dataclass(frozen=True)
class ExportPage:
    """Write a saved race as one page that plays with no server and no network."""

    file: tyro.conf.Positional[Path]
    """Race file; a picture that it names is taken along if it lies beside it."""

    html: Path
    """The page to write, about 5 MB."""

    def run(self, console: Console) -> None:
        from specllava.models.images import open_image
        from visual.player.frames import data_address, race_frames
        from visual.player.saved_page import saved_page

        check_outputs(html=self.html)
        race = _read_race(self.file)
        pictures = [data_address(open_image(file)) if file else None for file in race.pictures]
        write_whole(self.html, saved_page(race_frames(race, pictures)))
        steps = sum(len(turn.lead.steps) for turn in race.turns)
        print_line(console, f"{self.html}: {steps} steps")


@dataclass(frozen=True)
class Site:
    """Write a static edition of the page: what needs no model, for any web server and any number of readers."""

    output: Path
    """Directory to write; it must not exist."""

    live: str = ""
    """Address of a page with models, to link to."""

    code: str = ""
    """Address of the project's files, to link to."""

    races: Path | None = None
    """Directory of race files, dialogues too, to show in place of the examples; their pictures lie beside them."""

    def run(self, console: Console) -> None:
        from visual.player.lessons import load_lessons
        from visual.site import write_site

        for name, address in (("live", self.live), ("code", self.code)):
            if address and not re.match("https?://[^/]", address):
                raise ValueError(f"--{name} {address}: an address begins with http:// or https:// and names a host")
        check_free(self.output)
        if not self.output.parent.is_dir():
            raise ValueError(f"--output {self.output} cannot be written: there is no directory {self.output.parent}")
        examples, lessons = _read_races(self.races or ASSETS / "examples"), load_lessons(ASSETS / "lessons")
        taken = {race.name for lesson in lessons for race in lesson.races}
        if clash := [race.name for race in examples if race.name in taken]:
            raise ValueError(f"{clash[0]}.json has the name of a lesson's race: rename it")
        with whole_directory(self.output) as folder:
            write_site(folder, examples, lessons, self.live, self.code)
        files = [file for file in self.output.rglob("*") if file.is_file()]
        size = sum(file.stat().st_size for file in files) / 1e6
        index = self.output / "index.html"
        print_line(console, f"{self.output}: {len(files)} files, {size:.1f} MB; {index} is the page")


def _read_races(folder: Path) -> list[Recorded]:
    """Read the race files of a directory, by name; one that is refused refuses all."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise ValueError(f"--races {folder}: there is no race file (*.json); compare --trace writes one")
    if odd := [path.name for path in paths if not path.stem.isprintable()]:
        raise ValueError(f"{odd[0]!a} cannot be named in a link: use printable characters")
    return [_read_race(path) for path in paths]


def _read_race(file: Path) -> Recorded:
    """Read a race file; what was filled in for its old schema is a line on stderr."""
    from visual.player.recorded import read_recorded

    race = read_recorded(file)
    if race.filled:
        print_notice(f"{file}: {race.filled}")
    return race
