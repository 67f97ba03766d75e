"""The tab Measure: settings, Compare, charts of the run on the stage, its node table, what it would be on my GPU."""

from __future__ import annotations

import html
import json
import logging
import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import gradio as gr

from specllava.config import RULE_CHOICES, SWEEP_VALUES, DecodingConfig
from specllava.files import SCENES
from specllava.metrics import compare, pooled_ratio, speedup, summarise
from specllava.race_file import race_json
from specllava.trace import TARGET_ONLY, DecodeTrace
from visual.figures import Doubts, doubt_chart, doubt_words, reach_chart, reach_words, speed_chart
from visual.page import pays
from visual.page.run import QUICK, Bounded, connect_run, failure_line, open_pictures, refusal_line, session_of, warn
from visual.page.settings import FIELDS, make_config, read_draft, settings_controls
from visual.page.state import Dialogue, PageState, opened_dialogue
from visual.player.frames import race_frames
from visual.player.labels import counted
from visual.player.recorded import check_question, recorded_race
from visual.player.tree import node_rows

if TYPE_CHECKING:
    from specllava.variants import Variant

log = logging.getLogger("specllava.page")
ON_QUESTION: Final = "this question"
THIS_RUN: Final = "this run"
SCENE_COUNTS: Final = (5, 20, 55)
KINDS: Final = ("Rules", "Drafts", "One knob", "Against the last run")
MOST_RACES: Final = 12  # races whose rows open on the stage
COLUMNS: Final = ("what", "tokens a pass", "guesses a pass", "times as fast", "95 % interval", "same tokens")
NODE_COLUMNS: Final = (
    "step", "ahead", "guess", "small model", "doubt, nats", "large model", "large model's word", "verdict",
)  # fmt: skip


@dataclass(slots=True)
class Row:
    """One row of a comparison: its runs, and those of the target alone beside them, in the same order."""

    name: str
    runs: list[DecodeTrace] = field(default_factory=list)
    alone: list[DecodeTrace] = field(default_factory=list)

    @property
    def same(self) -> int:
        """How many of its answers are the target's, token for token."""
        return sum(compare(one, two).identical for one, two in zip(self.alone, self.runs, strict=True))

    def cells(self) -> tuple[str, ...]:
        """Return its cells, in the order of :data:`COLUMNS`."""
        own, (ratio, low, high) = summarise(self.runs), self.speed()
        interval = "" if math.isnan(low) else f"{low:.2f} – {high:.2f}"
        guesses = own.drafted / own.target_passes if own.target_passes else math.nan
        same = f"{self.same} of {len(self.runs)}"
        return self.name, f"{own.tau:.1f}", f"{guesses:.1f}", f"{ratio:.2f}×", interval, same

    def speed(self) -> tuple[float, float, float]:
        """Return how many times as fast it was by the clock, with the ends of the interval over prompts."""
        if len(self.runs) < 2:
            return speedup(summarise(self.alone), summarise(self.runs)), math.nan, math.nan
        lanes = ([summarise([one]) for one in lane] for lane in (self.alone, self.runs))
        pooled = pooled_ratio(*([(float(one.step_tokens), one.decode_seconds) for one in lane] for lane in lanes))
        return pooled.value, pooled.low, pooled.high


# --- what is computed ---------------------------------------------------------------------------


def questions(
    scope: str, path: str | None, asked: str | None, state: PageState
) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Yield picture and question of each prompt: the one on the stage, or held-out scenes that ship."""
    if scope == ON_QUESTION:
        check_question(asked or "", state.limits.prompt_characters)
        yield open_pictures(path, state.limits.pixels), asked or ""
        return
    rows = map(json.loads, SCENES.read_text(encoding="utf-8").splitlines())
    held_out = (row for row in rows if row["split"] == "held-out")
    for row in islice(held_out, int(scope.split()[0])):
        yield open_pictures(str(SCENES.parent / row["image"]), state.limits.pixels), row["prompt"]


def compared(variants: Sequence[Variant], prompts: Iterator[Any]) -> Generator[list[Row] | None]:
    """Decode every prompt in every variant; yield the rows so far after each prompt, ``None`` after each step."""
    from specllava.variants import race_variants

    rows = [Row(one.name) for one in variants]
    for images, question in prompts:
        traces = yield from race_variants(variants, images, question)
        for row in rows:
            row.runs.append(traces[row.name])
            row.alone.append(traces[TARGET_ONLY])
        yield rows


def chosen_variants(
    state: PageState, kind: str, knob: str, draft: str | None, config: DecodingConfig, last: DecodingConfig | None
) -> Sequence[Variant]:
    """Return what is compared, as one of :data:`KINDS`.

    Raises:
        ValueError: nothing to compare, in one line.
    """
    from specllava.variants import Variant, draft_variants, rule_variants, sweep_variants

    pair = state.pair(draft)
    if kind == "Rules":
        return rule_variants(pair, config)
    if kind == "Drafts":
        drafts = {"the page's own": state.pair(None)} | {name: state.pair(name) for name in state.drafts}
        return draft_variants(drafts, config)
    if kind == "One knob":
        return sweep_variants(pair, config, knob)
    if last is None or last == config:
        raise ValueError("the last run had these very settings: change one first")
    return [Variant("the last run", pair, last), Variant("these settings", pair, config)]


def comparison_words(rows: Sequence[Row], prompts: int) -> str:
    """Say what a comparison found, and on how many of its prompts."""
    best = max(rows, key=lambda row: summarise(row.runs).tau)
    least = min(rows, key=lambda row: summarise(row.runs).tau)
    fastest, ratio = max(((row, row.speed()[0]) for row in rows), key=lambda one: one[1])
    runs, same = sum(len(row.runs) for row in rows), sum(row.same for row in rows)
    taus = summarise(best.runs).tau, summarise(least.runs).tau
    high, low = (f"{tau:.1f}" for tau in taus)
    some = f"{best.name} brings {high} tokens a pass, {least.name} {low};"
    words = f"All bring {high} tokens a pass;" if high == low else some
    clock = f"by the clock {fastest.name} is ahead, {ratio:.2f} times as fast as the large model alone."
    scenes = f", on {len(rows[0].runs)} of {prompts} scenes" if prompts > 1 else ""
    return f"{words} {clock} The tokens were the same in {same} of {counted(runs, 'run')}{scenes}."


# --- the tab ------------------------------------------------------------------------------------


def measure_tab(state: PageState, stage: Sequence[Any]) -> list[Any]:
    """Build the tab. Return the controls of the settings, in the order of the fields.

    Args:
        stage: its player, picture, question and dialogue.
    """
    with gr.Row(elem_classes="measure"):
        with gr.Column(scale=2, min_width=280):
            gr.Markdown("[Does it pay on my GPU?](#pays)\n## Settings\nOf the next run, on both tabs."
                        " Draft: the small model. Target: the large one. Pass: one run of a model.")
            controls = settings_controls(list(state.drafts), state.limits)
        with gr.Column(scale=5, min_width=320, visible=state.lent is None):
            whose = gr.Dropdown(
                [THIS_RUN], value=THIS_RUN, label="Whose doubt", show_label=False, container=False, visible=False,
                allow_custom_value=True, render=False,
            )  # fmt: skip
            compared_doubts = _compare(state, stage, controls, whose)
    player = stage[0]
    first = run_views(player.value)
    doubts = gr.State(first.doubts)
    doubt_first = doubt_views(THIS_RUN, {}, first.doubts)
    with gr.Row(elem_classes="measure"):
        with gr.Column(scale=2, min_width=280):
            about = gr.Markdown(first.about)
        with gr.Column(scale=5, min_width=320):
            with gr.Row():
                with gr.Column(min_width=280):
                    gr.Markdown("### How far did each guess go?")
                    reach_line, reach = gr.Markdown(first.reach_words), gr.Plot(first.reach, show_label=False)
                with gr.Column(min_width=280):
                    gr.Markdown("### Was it right when it was sure?")
                    whose.render()
                    doubt = [gr.Markdown(doubt_first[0]), gr.Plot(doubt_first[1], show_label=False)]
            with gr.Accordion("Every guess", open=False):
                nodes = gr.Dataframe(
                    first.nodes, headers=list(NODE_COLUMNS), interactive=False, max_height=420, show_label=False
                )
    _pays()
    # The dialogue is kept here: frames as an input would be sent back with every change, and large ones be refused.
    views = [about, reach_line, reach, doubts, nodes]
    shown = stage[3]
    player.change(lambda run: run_views(run and run.frames), shown, views, trigger_mode="always_last", **QUICK)
    changes = [whose.change, compared_doubts.change, doubts.change]
    gr.on(changes, doubt_views, [whose, compared_doubts, doubts], doubt, **QUICK)
    return controls


class RunViews(NamedTuple):
    """What Measure shows of the run on the stage: its question, how far its guesses went, its doubts, its nodes."""

    about: str = "## This run\nOf the run on the stage."
    reach_words: str = ""
    reach: Any = None
    doubts: Doubts = Doubts(())
    nodes: list[tuple[Any, ...]] | None = None


def run_views(frames: Sequence[str] | None) -> RunViews:
    """Return the views of a run; empty ones before it has ended, and where nobody drafted or it is too large."""
    run, *_ = frames or ("",)
    end = next((frame for frame in frames or () if frame.startswith('{"kind":"end"')), None)
    if end is None:
        return RunViews()
    try:
        turns = recorded_race("run", json.loads(end)["file"].encode()).turns
    except ValueError as refusal:
        return RunViews(f"## This run\nIt has no charts: {_plain(str(refusal))}")
    turn = json.loads(run)["turn"]
    trace = turns[-1 if turn is None else turn].lead
    if not any(step.tree.drafted for step in trace.steps):
        return RunViews()
    nodes = [
        (number, depth, text, _two(small), _two(nats), _two(large), choice, verdict)
        for number, _, _, depth, _, text, verdict, small, nats, large, _, choice, _ in node_rows(trace)
    ]
    about = f"## This run\n{_plain(trace.prompt)[:200]}"
    return RunViews(about, reach_words(trace), reach_chart(trace), Doubts.of([trace]), nodes)


def doubt_views(name: str, compared: dict[str, Doubts], own: Doubts) -> tuple[str, Any]:
    """Return words and chart of a variant's doubt, of the run on the stage where none has that name."""
    doubts = compared.get(name, own)
    return (doubt_words(doubts), doubt_chart(doubts)) if doubts.points else ("", None)


def _two(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else ""


def _plain(text: str) -> str:
    """Return a text in which Markdown has nothing to read."""
    return "".join(character if character.isalnum() or character in " ,.?!'" else " " for character in text)


def _compare(state: PageState, stage: Sequence[Any], controls: list[Any], whose: gr.Dropdown) -> gr.State:
    """Build Compare: what, on which prompts, a table whose rows open on the stage, a chart. Return the runs' doubts.

    Args:
        whose: gets the names of what was compared.
    """
    scopes = [ON_QUESTION, *(f"{count} scenes" for count in SCENE_COUNTS if state.is_toy)]
    kinds = [kind for kind in KINDS if kind != "Drafts" or state.drafts]
    gr.Markdown("## Compare")
    words = gr.Markdown("The same question in several ways, beside the large model alone.")
    with gr.Row(elem_classes="compare"):
        kind = gr.Radio(kinds, value=kinds[0], show_label=False, container=False, label="Compare", min_width=700)
        knob = gr.Dropdown(list(SWEEP_VALUES), value="entropy_threshold", label="knob", visible=False, min_width=140)
        scope = gr.Dropdown(scopes, value=scopes[0], label="on", min_width=140)
        start = gr.Button("Compare", variant="primary", min_width=100)
        stop = gr.Button("Stop", visible=False, min_width=80)
    table = gr.Dataframe(headers=list(COLUMNS), interactive=False, show_label=False, elem_id="compared", visible=False)
    with gr.Row(visible=False) as details:
        with gr.Column(min_width=280):
            about = gr.Markdown()
        with gr.Column(min_width=280):
            chart = gr.Plot(show_label=False)
    races, doubts = gr.State([]), gr.State({})
    kind.change(lambda chosen: gr.update(visible=chosen == "One knob"), kind, knob, **QUICK)

    def run(request: gr.Request, *given: Any) -> Generator[Any]:
        yield from _run(state, session_of(request), *given)

    inputs = [*stage[1:], kind, knob, scope, *controls]
    outputs = [words, table, details, about, chart, whose, races, doubts]
    connect_run(state, [([start.click], inputs)], [start, stop], run, outputs, words)
    table.select(_open_row, races, [stage[0], *stage[2:]], **QUICK).then(
        None, None, None, js="() => document.querySelector('#tabs button[role=tab]').click()", api_visibility="private"
    )
    return doubts


def _open_row(event: gr.SelectData, races: list[str]) -> Any:
    """Return the frames of the race whose row was chosen, its question, and the dialogue that it is."""
    row = event.index[0] if isinstance(event.index, list | tuple) else event.index
    if not isinstance(row, int) or not 0 <= row < len(races):
        raise gr.Error("This run is no longer kept.", print_exception=False)
    try:
        race = recorded_race("compared", races[row].encode())
    except ValueError as refusal:
        raise gr.Error(html.escape(f"This run cannot be drawn: {refusal}"), print_exception=False) from None
    frames = race_frames(race)
    return frames, race.turns[-1].prompt, opened_dialogue(race, frames)


def _run(
    state: PageState, session: str, number: int, path: str | None, asked: str, before: Dialogue | None,
    kind: str, knob: str, where: str, *settings: Any,
) -> Generator[tuple[Any, ...]]:  # fmt: skip
    """Compare what the controls say, and yield what is found after each prompt; a refusal is one line."""
    try:
        given = dict(zip(FIELDS, settings, strict=True))
        draft, config = read_draft(given["drafter"]), make_config(given, state.limits)
        last = before.last.trace.config if before is not None and before.last is not None else None
        variants = chosen_variants(state, kind, knob, draft, config, last)
        prompts = 1 if where == ON_QUESTION else int(where.split()[0])
        tables = compared(variants, questions(where, path, asked, state))
        bounded = Bounded(tables, state.limits.seconds_per_run, lambda: state.runs.state(session, number))
        for rows in bounded:
            if rows:
                yield _shown(rows, prompts, knob if kind == "One knob" else "")
        if bounded.outcome == "deadline":
            warn(f"Stopped after {state.limits.seconds_per_run:.0f} seconds. What was found so far stays.")
    except ValueError as refusal:
        warn(f"This cannot be compared: {refusal_line(refusal)}")
    except Exception as problem:
        log.exception("a comparison failed")
        warn(failure_line(problem))
    finally:
        state.runs.end(session, number)


def _shown(rows: Sequence[Row], prompts: int, axis: str) -> tuple[Any, ...]:
    names = [row.name for row in rows]
    races = [race_json(row.alone[-1], row.runs[-1]) for row in rows[:MOST_RACES]]
    about = "".join(f"- **{name}**: {RULE_CHOICES[name].help}\n" for name in names if name in RULE_CHOICES)
    table = gr.update(value=[list(row.cells()) for row in rows], visible=True)
    speeds = speed_chart([(row.name, *row.speed()) for row in rows], axis)
    return (
        comparison_words(rows, prompts), table, gr.update(visible=True),
        f"{about}\n95 %: bootstrap over prompts. A row opens its last run on the stage.", speeds,
        gr.update(choices=[THIS_RUN, *names], visible=True), races, {row.name: Doubts.of(row.runs) for row in rows},
    )  # fmt: skip


def _pays() -> None:
    """Build "Does it pay on my GPU?": four numbers, one sentence, where they come from, and how to try it there."""
    first, card = next(iter(pays.MODELS)), next(iter(pays.CARDS))

    def say(model: str, gpu: str, *typed: float | None) -> tuple[str, str, str]:
        given = [one or 0.0 for one in typed]
        empty = [name for name, one in zip(pays.FIELDS, given, strict=True) if one <= 0]
        known = pays.numbers(model, gpu)
        line = f"Please fill in, above 0: {', '.join(empty)}." if empty else pays.verdict(given, known)
        return f"## {line}", pays.assumptions(model, gpu, given), f"python app.py --preset {pays.MODELS[model].preset}"

    with gr.Row(elem_classes="measure", elem_id="pays"):
        with gr.Column(scale=2, min_width=280):
            gr.Markdown("## Does it pay on my GPU?")
            model = gr.Dropdown(list(pays.MODELS), value=first, label="Model")
            gpu = gr.Dropdown(list(pays.CARDS), value=card, label="GPU")
            named = zip(pays.FIELDS, pays.numbers(first, card), strict=True)
            numbers = [gr.Number(value, label=label, minimum=0) for label, value in named]
        with gr.Column(scale=5, min_width=320):
            start = say(first, card, *pays.numbers(first, card))
            sentence, sources = gr.Markdown(start[0], elem_classes="verdict"), gr.Markdown(start[1])
            command = gr.Textbox(start[2], label="Start with it there", interactive=False, buttons=["copy"])
    gr.on([model.change, gpu.change], pays.numbers, [model, gpu], numbers, **QUICK)
    changes = [one.change for one in numbers]
    gr.on(changes, say, [model, gpu, *numbers], [sentence, sources, command], **QUICK)
