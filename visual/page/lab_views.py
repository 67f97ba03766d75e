"""Views of experiments: a chart, and the answer word by word, or trees of one position.

Plain data for ``static/lab.js``, which puts every text into the page as text.
"""

from __future__ import annotations

from specllava.token_text import join_texts
from specllava.trace import DecodeTrace
from specllava.findings.ablation import Ablation, TreeComparison
from specllava.findings.sweep import Sweep
from visual.figures.ablation_charts import distillation_chart, drafted_by_position, image_ablation_chart
from visual.figures.charts import Chart
from visual.figures.labels import counted, token_label
from visual.figures.step_layout import StepLayout
from visual.figures.sweep_charts import drafters_chart, rules_chart, sweep_chart
from visual.figures.tree_figure import tree_figure
from visual.player.explanations import step_sentence
from visual.player.grounding import grounding_of

ENTROPY_CEILING, KL_CEILING = 2.0, 1.0  # nats at the bright end of the scale
GROUNDING = "Which words need the picture?"
NAMED = 4  # words that an answer names
CONTEXT_TOKENS = 6  # tokens before a position that are named
ROOM = 0.8  # rows above and below a tree, for labels
View = dict[str, object]


def rules_view(found: Sweep) -> tuple[str, View]:
    """Return the progress in words and the view: the chart."""
    return _progress(found.finished, len(found.values), "rules"), rules_chart(found).as_json()


def drafters_view(found: Sweep) -> tuple[str, View]:
    """Return the progress in words and the view: the chart."""
    return _progress(found.finished, len(found.values), "drafters"), drafters_chart(found).as_json()


def sweep_view(found: Sweep) -> tuple[str, View]:
    """Return the progress in words and the view: the chart."""
    return _progress(found.finished, len(found.values), "values"), sweep_chart(found).as_json()


def image_ablation_view(found: Ablation) -> tuple[str, View]:
    """Return the progress in words and the view: the chart, the answer with the draft's entropy at each word."""
    view = image_ablation_chart(found).as_json()
    if found.results:
        view["gloss"] = _gloss(found, "entropies", ENTROPY_CEILING, "how unsure the draft was (entropy)")
    return _progress(len(found.results), len(found.names), "pictures"), view


def grounding_view(trace: DecodeTrace) -> tuple[str, View]:
    """Return the progress in words and the view: a table of the words, and what the player marks them by."""
    grounding = trace.grounding
    if grounding is None:
        view = Chart(GROUNDING, "The large model reads its answer again.", (), (), ()).as_json()
        return "The answer is there; now with a grey picture", view
    words = [token_label(trace, token) for token in trace.token_ids]
    answer = f"No word of this answer needs the picture: a grey one makes none {grounding.factor:g} times less likely."
    if grounding.grounded:
        named = ", ".join(f"“{words[at]}”" for at in grounding.grounded[:NAMED])
        answer = (
            f"{len(grounding.grounded)} of {counted(len(words), 'token')} need the picture, {named} among them: with a"
            f" grey one they are at least {grounding.factor:g} times less likely. They are marked in the answers above."
        )
    measured = zip(words, grounding.probs, grounding.blank_probs, grounding.blank_choices, strict=True)
    needs = ["yes" if at in grounding.grounded else "" for at in range(len(words))]
    rows = tuple(
        (word, _prob_text(seen), _prob_text(blank), token_label(trace, choice), need)
        for (word, seen, blank, choice), need in zip(measured, needs, strict=True)
    )
    columns = ("Token", "With the picture", "With a grey one", "Then likeliest", "Needs the picture")
    view = Chart(GROUNDING, answer, (), columns, rows).as_json()
    waiting = grounding.grounded and not grounding.grid
    return "Now one part of the picture after the other" if waiting else "", view | {"grounding": grounding_of(trace)}


def distillation_view(found: Ablation) -> tuple[str, View]:
    """Return the progress in words and the view: the chart, the answer, the trees where the drafts differ most."""
    view = distillation_chart(found).as_json()
    if found.results:
        view["gloss"] = _gloss(found, "divergences", KL_CEILING, "how far the draft was from the target (KL)")
    if found.comparisons:
        view["closeups"] = [_tree_comparison(found, comparison) for comparison in found.comparisons]
    return _progress(len(found.results), len(found.names), "drafts"), view


def _progress(done: int, total: int, noun: str) -> str:
    return "" if done == total else f"{done} of {total} {noun}"


def _gloss(found: Ablation, field: str, ceiling: float, scale: str) -> View:
    """Return the answer's words with a mark per side: its entropy or KL, and the verdict on its guess."""
    trace = found.results[0].trace
    words: list[View] = []
    drafted = drafted_by_position(found)
    for position, token in enumerate(trace.token_ids):
        marks = []
        for side, accepted in zip(found.results, drafted, strict=True):
            value = getattr(side.scores, field)[position]
            verdict = {True: "drafted", False: "target", None: "first"}[accepted.get(position)]
            prob = side.scores.probs[position]
            marks.append({
                "share": round(min(value / ceiling, 1.0), 3), "verdict": verdict,
                "title": f"{side.name}: {value:.2f} nats, gave this token {prob:.2f}",
            })  # fmt: skip
        words.append({"text": token_label(trace, token), "glued": _glued(trace, token), "marks": marks})
    return {"names": [side.name for side in found.results], "scale": scale, "ceiling": ceiling, "words": words}


def _glued(trace: DecodeTrace, token: int) -> bool:
    """Return whether a token continues the word before it."""
    return token not in trace.eos_token_ids and not trace.texts[token].startswith(" ")


def _tree_comparison(found: Ablation, comparison: TreeComparison) -> View:
    answer = found.results[0].trace
    start = max(0, comparison.position - CONTEXT_TOKENS)
    before = join_texts(answer.texts[token] for token in answer.token_ids[start : comparison.position]).strip()
    trees = []
    for side, trace in zip(found.results, comparison.traces, strict=True):
        step = trace.steps[0]
        figure = tree_figure(trace, step)
        heights = StepLayout(trace, step).heights
        rows = max(heights) - min(heights) + 2 * ROOM
        figure.update_yaxes(range=[min(heights) - ROOM, max(heights) + ROOM])
        figure.layout.meta = {**figure.layout.meta, "rows": rows}
        trees.append({"name": side.name, "say": step_sentence(trace, step), "figure": figure.to_plotly_json()})
    word = token_label(answer, answer.token_ids[comparison.position])
    return {"name": f"at {word}", "before": f"… {before}", "trees": trees}


def _prob_text(value: float) -> str:
    return f"{value:.2f}" if value >= 0.005 else "under 0.01"
