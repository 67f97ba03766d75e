"""Options that commands share, what they do with them, and the page's. No torch until a pair is loaded."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import tyro
from rich.console import Console

from specllava.config import DecodingConfig, DrafterName, Limits
from specllava.files import write_whole
from specllava.metrics import RunTotals, unused_draft
from specllava.models.options import LoadOptions, PassesName
from specllava.models.presets import Tree, preset_named

if TYPE_CHECKING:
    from specllava.models.checkpoint import Source
    from specllava.models.images import Pictures
    from specllava.pair import Pair

DecodingOptions = Annotated[DecodingConfig, tyro.conf.OmitArgPrefixes]
Typed = Annotated[frozenset[str], tyro.conf.Suppress]  # options of decoding that the command line names


@tyro.conf.configure(tyro.conf.OmitArgPrefixes)
@dataclass(frozen=True)
class PairOptions:
    """Which pair, and on what."""

    preset: str = "toy"
    """Name of a pair: toy, toy-before (its draft before distillation), toy-eagle or toy-eagle-compressed, which ship;
    smol, whose language model recipes.smol fetch downloads; others from the hub, such as llava-1.5-7b-msd with a
    published draft (specllava presets lists them)."""

    target: str | None = None
    """Any model of a family that is known (docs/models.md), language models among them: an id of the hub, or a
    directory."""

    draft: str | None = None
    """Any draft for it: an id of the hub, or a directory; specllava draft and distill make one. Its configuration and
    the names of its tensors determine its kind."""

    loading: LoadOptions = field(default_factory=LoadOptions)

    passes: PassesName = "auto"
    """How passes run: eager: in the shapes that they come in; padded: in a few fixed shapes; graphs: these captured as
    CUDA graphs and replayed, which spares a GPU the launches. auto takes graphs on a GPU if they compute the same."""

    exact: bool = False
    """Give the tokens of the target alone in any precision. Every pass has 32 rows, and of a tree only the first branch
    is verified, which costs tokens per pass. Refused where the device's kernels do not allow it."""

    threads: int = 0
    """CPU threads of a pass; 0 measures at load with how many a decode step is fastest, for a second."""

    @property
    def tree(self) -> Tree:
        """Options of decoding with which others measured the preset's own draft; of any other none are known."""
        return {} if self.target is not None or self.draft is not None else preset_named(self.preset).tree


@dataclass(frozen=True, kw_only=True)
class AnswerOptions:
    """What commands that answer a question share: it and its pictures, files to write, the pair, how it decodes."""

    prompt: str
    """The question."""

    image: tuple[Path, ...] = ()
    """Picture files, in the order in which they are shown; without any the question is about none."""

    system: str | None = None
    """Text of a system turn in front of the question."""

    json: Path | None = None
    """Write token ids and text to this file."""

    trace: Path | None = None
    """Write the trace, or the traces of both lanes, to this file: what trace view and the page open."""

    pair: PairOptions = field(default_factory=PairOptions)
    decoding: DecodingOptions = field(default_factory=DecodingConfig)
    typed: Typed = frozenset()

    @property
    def messages(self) -> list[dict[str, str]]:
        """The question after the system turn, if there is one."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, {"role": "user", "content": self.prompt}]

    def prepare(self, fallback: DrafterName) -> tuple[Pair, Pictures, DecodingConfig]:
        """Load the pair and the options for decoding; check first what needs no model. The pictures come with them.

        Raises:
            ValueError: files that cannot be written, an unreadable picture, or as :func:`load_pair`.
        """
        check_outputs(json=self.json, trace=self.trace)
        from specllava.models.images import read_size

        for image in self.image:
            read_size(image)
        pair = load_pair(self.pair)
        decoding = with_defaults(self.decoding, self.pair, self.typed, pair.nodes)
        return pair, self.image, with_fallback_drafter(pair, decoding, fallback)


def typed_options(arguments: Sequence[str]) -> frozenset[str]:
    """Return the names of the options of decoding that are among arguments, their values left aside."""
    options = (one.partition("=")[0][2:] for one in arguments if one.startswith("--"))
    return frozenset(one.replace("-", "_") for one in options) & {option.name for option in fields(DecodingConfig)}


def with_defaults(
    decoding: DecodingConfig, pair: PairOptions, typed: Collection[str], nodes: int | None = None
) -> DecodingConfig:
    """Return options with a preset's tree for its rule, and the device's number of nodes, for what was not typed."""
    device = {} if nodes is None else {"nodes": nodes}
    tree = {} if "rule" in typed and decoding.rule != pair.tree.get("rule") else pair.tree
    return replace(decoding, **{name: value for name, value in {**device, **tree}.items() if name not in typed})


def load_pair(chosen: PairOptions) -> Pair:
    """Load the pair that the options name; for one that does not ship, print the memory needed to stderr first.

    Raises:
        ValueError: as :meth:`specllava.pair.Pair.load`, or passes that the device cannot run.
    """
    target: Source | None
    draft: Source | None
    preset, target, draft, reading = None, chosen.target, chosen.draft, chosen.loading.reading
    if target is None:
        preset = preset_named(chosen.preset)
        target, (draft, reading) = preset.target, preset.chosen(draft, reading)
    if chosen.threads < 0:
        raise ValueError(f"--threads is {chosen.threads}: 0 or more is needed")
    announce_loading(chosen.preset if chosen.target is None else chosen.target)
    from specllava.pair import Pair
    from specllava.spec_decode.logits_processing import settings_in_force

    hide_progress_bars()
    options: dict[str, Any] = asdict(chosen.loading) | asdict(reading)
    if preset is None or not preset.local:
        options["notify"] = print_notice
    pair = Pair.load(target, draft, None if preset is None else chosen.preset, **options)
    if asked := settings_in_force(pair.target.generation_config, sampling=True):
        print_notice(f"generation_config.json asks for {asked}")
    return replace(pair, passes=chosen.passes, exact=chosen.exact).warm_up(chosen.threads)


def with_fallback_drafter(pair: Pair, decoding: DecodingConfig, fallback: DrafterName) -> DecodingConfig:
    """Return the options with ``fallback`` as drafter if the pair has no draft, which one line on stderr says."""
    if pair.draft is not None or decoding.drafter != "model":
        return decoding
    what = "speculation is off" if fallback == "none" else f"{fallback} guesses"
    print_notice(f"{what} because {pair.name} has no draft: {pair.draft_advice}")
    return replace(decoding, drafter=fallback)


def report_unused_draft(draft: str, drafter: str, totals: RunTotals) -> None:
    """Print a notice on a draft model that is hardly ever right, if it is one."""
    if line := unused_draft(draft, drafter, totals):
        print_notice(line)


def print_line(console: Console, line: str) -> None:
    """Print a line of output as it is: no markup or emoji codes in it, no line breaks added."""
    console.print(line, markup=False, emoji=False, highlight=False, soft_wrap=True)


def print_notice(line: str) -> None:
    """Print a line for people to stderr, beside what a command prints."""
    print(line, file=sys.stderr)


def announce_loading(what: str) -> None:
    """Print what is loaded before torch and transformers are imported: that alone takes seconds."""
    print_notice(f"loading {what}: torch and transformers first, then the weights")


def hide_progress_bars() -> None:
    """Turn transformers' progress bars off where stderr is a log or a pipe."""
    from transformers.utils.logging import disable_progress_bar

    if not sys.stderr.isatty():
        disable_progress_bar()


def check_outputs(**files: Path | None) -> None:
    """Refuse files, by the name of their option, that could not be written, before anything is computed for them.

    Raises:
        ValueError: the first of them, and why.
    """
    for name, path in files.items():
        if path is None:
            continue
        folder, why = path.parent, ""
        if path.is_dir():
            why = "it is a directory"
        elif not folder.is_dir():
            why = f"there is no directory {folder}"
        elif not os.access(path if path.exists() else folder, os.W_OK):
            why = "it may not be written there"
        if why:
            raise ValueError(f"--{name.replace('_', '-')} {path} cannot be written: {why}")


def write_json(path: Path | None, data: dict[str, Any]) -> None:
    """Write a result where the user asked for it, if anywhere."""
    if path:
        write_whole(path, json.dumps(data, indent=1, ensure_ascii=False) + "\n")


PRIVATE_NETWORKS: Final = "10.0.0.0/8,172.16.0.0/12,192.168.0.0/16"


@dataclass(frozen=True)
class PageOptions:
    """Watch lossless tree speculative decoding of a vision-language model."""

    running: PairOptions = field(default_factory=lambda: _pair_from_environment())

    host: str = field(
        default_factory=lambda: _from("GRADIO_SERVER_NAME") or ("0.0.0.0" if _from("SPACE_ID") else "127.0.0.1")
    )
    """Who may connect: GRADIO_SERVER_NAME; without it everybody on a hosted Space, otherwise this machine alone."""

    port: int = field(default_factory=lambda: int(_from("GRADIO_SERVER_PORT", "PORT") or 7860))
    """Where the page is served: GRADIO_SERVER_PORT or PORT, 7860 without them."""

    root_path: str = field(default_factory=lambda: _from("GRADIO_ROOT_PATH"))
    """Path or whole address under which a proxy shows the page, such as /demo: GRADIO_ROOT_PATH."""

    trusted_proxies: str = field(
        default_factory=lambda: _from("FORWARDED_ALLOW_IPS") or (PRIVATE_NETWORKS if _from("SPACE_ID") else "")
    )
    """Addresses and networks of proxies, with commas between, that are believed in X-Forwarded-For whom they speak for:
    FORWARDED_ALLOW_IPS; without it those of private networks on a hosted Space, otherwise none."""

    drafts: tuple[str, ...] = ()
    """More drafts of the target for visitors to choose from, each loaded when it is first used: names of presets, ids
    of the hub, or directories."""

    open: Path | None = None
    """A race file to show first, in place of an example."""

    limits: Limits = field(default_factory=lambda: _limits())
    """What a visitor may ask for; each may also be set as SPECLLAVA_ and its name, such as SPECLLAVA_NEW_TOKENS."""


def _from(*names: str) -> str:
    """Return the first of these environment variables that is set."""
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def _limits() -> Limits:
    """Return the limits that the environment sets, and the usual ones besides."""
    given: dict[str, Any] = {limit.name: _from(f"SPECLLAVA_{limit.name.upper()}") for limit in fields(Limits)}
    return Limits(**{name: value for name, value in given.items() if value})


def _pair_from_environment() -> PairOptions:
    """Return the pair that a hosted page, which has no command line, loads."""
    target, draft = _from("SPECLLAVA_TARGET") or None, _from("SPECLLAVA_DRAFT") or None
    return PairOptions(_from("SPECLLAVA_PRESET") or PairOptions.preset, target, draft)
