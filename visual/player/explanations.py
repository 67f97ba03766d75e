"""Sentences about a step, made from its trace as styled segments.

A segment is ``[style, text]``; the page puts its text into the document as text, never as markup. Styles are
``plain``, ``strong``, ``em``, ``rejected`` and ``target``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from specllava.metrics import JudgedNode, judged_nodes
from specllava.trace import DecodeTrace, StepTrace
from specllava.tree import Pruned
from visual.figures.labels import END_MARK, counted, even_choices, token_label
from visual.figures.reasons import Reason, reasons
from visual.player.labels import path_text, word_after, word_at

Segments = list[list[str]]
TORN = 0.75  # of the draft's favourite: with more it is in no doubt
LEAST_RIVAL = 0.05  # of the next guess
FLOORED, RANKED = ("entropy", "chain"), ("entropy", "chain", "topk")  # rules with a least probability, and by rank
NAMED = 3  # pruned guesses that are named


def step_sentence(trace: DecodeTrace, step: StepTrace) -> Segments:
    """Explain which branch was taken and why it ended there; then, small, how many guesses there were."""
    if step.tree.drafted == 0:
        said = word_after(trace, step, 0, step.verification.bonus_token)
        return [["plain", "Nothing was drafted; the target said "], ["target", said], ["plain", "."]]
    return [*_fork(trace, step), *_ending(trace, step), ["small", f" {_bookkeeping(trace, step)}"]]


def _bookkeeping(trace: DecodeTrace, step: StepTrace) -> str:
    """Count guesses, branches, accepted guesses, and those that follow an end of the answer."""
    tree, ended = step.tree, _follow_end(trace, step)
    leaves = sum(not family for family in tree.children())
    kept = len(step.emitted_nodes) or "none"
    text = f"{counted(tree.drafted, 'guess')} on {counted(leaves, 'branch')}, {kept} accepted"
    after = f"; {sum(ended)} after {END_MARK}, where none can count" if any(ended) else ""
    return f"{text}{after}."


def _follow_end(trace: DecodeTrace, step: StepTrace) -> list[bool]:
    """Return which nodes lie below one that ends the answer."""
    follow = [False]
    for parent in step.tree.parents[1:]:
        follow.append(follow[parent] or (parent > 0 and step.tree.tokens[parent] in trace.eos_token_ids))
    return follow


def _fork(trace: DecodeTrace, step: StepTrace) -> Segments:
    """Describe the branching that mattered most: another guess than the favourite was right, or the draft was torn."""
    forks = [judged for judged in judged_nodes(step) if len(judged.children) > 1 and judged.outcome != "missed"]
    saved = [judged for judged in forks if judged.outcome == "saved"]
    told = saved or [judged for judged in forks if _torn(step, judged)]
    if not told:
        return []
    fork = told[0]
    first, second, *others = _family(step, fork)
    start: Segments
    taken = step.emitted_nodes[fork.position]
    right = " was accepted. " if _sampled(trace) else " was right. "
    if _torn(step, fork):
        tried = "both" if not others else "all three" if len(others) == 1 else f"all {2 + len(others)}"
        start = [["plain", "Torn between "], *_named(trace, step, first)]
        for number, node in enumerate([second, *others] if len(others) == 1 else [second]):
            joint = ", " if len(others) == 1 and not number else " and "
            start += [["plain", joint], *_named(trace, step, node)]
        more = f" and {len(others)} less likely" if len(others) > 1 else ""
        start.append(["plain", f"{more}, the draft tried {tried}: "])
    else:
        start = [["plain", "The draft's favourite was "], *_named(trace, step, first), ["plain", ", but it tried "],
                 *_named(trace, step, taken), ["plain", " too: "]]  # fmt: skip
    return [*start, ["strong", word_at(trace, step, taken)], ["plain", right]]


def _family(step: StepTrace, fork: JudgedNode) -> list[int]:
    """Return the guesses of a fork, the likeliest first."""
    return sorted(fork.children, key=lambda node: -step.tree.log_probs[node])


def _torn(step: StepTrace, fork: JudgedNode) -> bool:
    """Return whether the draft was in doubt: its favourite has no more than :data:`TORN`, and another as shown."""
    first, second, *_ = (math.exp(step.tree.log_probs[node]) for node in _family(step, fork))
    return first <= TORN and second >= LEAST_RIVAL


def _named(trace: DecodeTrace, step: StepTrace, node: int) -> Segments:
    return [["em", word_at(trace, step, node)], ["plain", f" ({_draft(step, node)})"]]


def _sampled(trace: DecodeTrace) -> bool:
    """Return whether tokens were drawn, so that none of them is right or wrong."""
    return trace.config.temperature > 0


def _draft(step: StepTrace, node: int) -> str:
    return f"{math.exp(step.tree.log_probs[node]):.2f}"


def _ending(trace: DecodeTrace, step: StepTrace) -> Segments:
    if step.bonus_unused:
        if step.emitted[-1] in trace.eos_token_ids:
            return [["plain", "With "], ["em", END_MARK], ["plain", " the answer was complete."]]
        most = counted(trace.config.max_new_tokens, "token")
        return [["plain", f"With these the answer had the {most} that it was allowed."]]
    last = step.verification.path[-1]
    wanted = word_after(trace, step, last, step.verification.bonus_token)
    drawn = step.verification.bonus_token != step.view.choices[last]  # only with a temperature
    sure = "." if drawn else f" ({step.view.choice_probs[last]:.2f})."
    after: Segments = [["em", path_text(trace, step, last, 2)]]
    family = step.tree.children()[last]
    if step.verification.bonus_token in trace.eos_token_ids and not family:
        return [["plain", "After "], *after, ["plain", " the target ended the answer"], ["plain", sure]]
    if not family:
        right = "accepted" if _sampled(trace) else "right"
        return [["plain", f"The whole branch was {right}; after "], *after, ["plain", " the target went on with "],
                ["target", wanted], ["plain", sure]]  # fmt: skip
    best = max(family, key=lambda node: step.tree.log_probs[node])
    chose = "drew" if _sampled(trace) else "wanted"
    return [
        ["plain", "After "], *after, ["plain", " the draft expected "],
        ["rejected", word_at(trace, step, best)],
        ["plain", f" ({_draft(step, best)}); the target {chose} "],
        ["target", wanted], ["plain", sure],
    ]  # fmt: skip


def node_reasons(trace: DecodeTrace, step: StepTrace) -> list[str]:
    """Explain the verdict on each node, and what was pruned below it."""
    codes = reasons(step, trace.config.temperature > 0)
    children, left = step.tree.children(), _left_at(step)
    below: list[list[Pruned]] = [[] for _ in children]
    for guess in step.pruned:
        if step.tree.tokens[guess.parent] not in trace.eos_token_ids:
            below[guess.parent].append(guess)
    sentences = []
    for node, code in enumerate(codes):
        siblings = len(children[step.tree.parents[node]]) if node else 0
        verdict = _verdict_sentence(trace, step, node, code, siblings, left[node])
        sentences.append(verdict + _pruned_below(trace, step, node, below[node]))
    return sentences


def _left_at(step: StepTrace) -> list[int]:
    """Return for every node the first one of its branch that is not accepted; the node itself if it is."""
    path, left = set(step.verification.path), list(range(len(step.tree)))
    for node, parent in enumerate(step.tree.parents[1:], start=1):
        if parent not in path:
            left[node] = left[parent]
    return left


def _verdict_sentence(trace: DecodeTrace, step: StepTrace, node: int, reason: Reason, siblings: int, left: int) -> str:
    tree, threshold = step.tree, trace.config.entropy_threshold
    if reason == "root":
        return "The last token of the step before, chosen by the target. The tree grows from here."
    parent = tree.parents[node]
    spread = _spread(tree.entropies[parent], siblings, threshold) if trace.rule_name == "entropy" else ""
    if trace.config.temperature > 0 and reason in ("accepted", "chance-against"):
        return spread + _draw_sentence(trace, step, node)
    if _follow_end(trace, step)[node]:
        return f"It follows {END_MARK}, where the answer stops: the draft went on in vain."
    if reason == "after-end":
        return "The answer had ended or reached its limit before it, so nobody asked for it."
    if reason == "accepted":
        return spread + "It is the target's own choice, so it stands."
    if reason == "another-wanted":
        wanted = token_label(trace, step.view.choices[parent])
        return spread + f"The target wanted {wanted} ({step.view.choice_probs[parent]:.2f})."
    return f"Never judged: its branch had already been left at {token_label(trace, tree.tokens[left])}."


def _pruned_below(trace: DecodeTrace, step: StepTrace, node: int, below: Sequence[Pruned]) -> str:
    """Name the pruned guesses after a node, the likeliest first."""
    if not below:
        return ""
    named = [f"{token_label(trace, guess.token)} ({math.exp(guess.log_prob):.2f})" for guess in below[:NAMED]]
    more = f" and {len(below) - NAMED} more" if len(below) > NAMED else ""
    missed = any(guess.token == step.view.choices[node] for guess in below)
    return (
        f" Pruned after it, unchecked: {', '.join(named)}{more}{'; one of them the target wanted' if missed else ''}."
    )


def pruned_reason(trace: DecodeTrace, step: StepTrace, guess: Pruned) -> str:
    """Explain why a guess was pruned, as far as the run's options tell."""
    regret = " It is what the target wanted there." if guess.token == step.view.choices[guess.parent] else ""
    return f"The draft thought of it, but {_cut_by(trace, step, guess)}, so the target was not asked.{regret}"


def _cut_by(trace: DecodeTrace, step: StepTrace, guess: Pruned) -> str:
    """Name the bound that a pruned guess was beyond: the floor of a branch, or the size of the tree."""
    config, rule = trace.config, trace.rule_name
    score = step.tree.scores()[guess.parent] + guess.log_prob
    if rule in FLOORED and score < config.min_log_prob:
        digits = 2 if math.exp(config.min_log_prob) >= 0.1 else 4
        own, least = math.exp(score), math.exp(config.min_log_prob)
        return f"its branch has {own:.{digits}f}, below the {least:.{digits}f} that is worth asking"
    if rule in RANKED and step.tree.drafted >= config.nodes:
        return f"the {counted(config.nodes, 'guess')} that a tree may have went to likelier branches"
    return "its rule left it out"


def _spread(entropy: float | None, siblings: int, threshold: float) -> str:
    """Explain how many children the entropy rule gave a node, where its threshold alone decided."""
    if siblings > 1 and entropy is not None and entropy > threshold:
        doubt = f"{entropy:.2f} nats, {even_choices(entropy)}"
        return f"Before this word the draft was unsure ({doubt}), so it tried {siblings} words. "
    if siblings == 1 and entropy is not None and entropy <= threshold:
        return f"Before this word the draft was sure ({entropy:.2f} nats), so it tried one word. "
    return ""


def _draw_sentence(trace: DecodeTrace, step: StepTrace, node: int) -> str:
    """Explain the verdict on a node with an accepted parent, where the target's next token was drawn."""
    path, accepted = step.verification.path, step.verification.accepted
    odds = f"The target gives it {step.view.token_probs[node]:.2f}, the draft {math.exp(step.tree.log_probs[node]):.2f}"
    if not trace.config.keeps_tokens:
        return f"{odds}; chance decided {'for' if node in accepted else 'against'} it."
    depth = path.index(step.tree.parents[node])
    drawn = step.tree.tokens[accepted[depth]] if depth < len(accepted) else step.verification.bonus_token
    return f"{odds}; the target's draw fell on {'it' if node in accepted else token_label(trace, drawn)}."


def next_reason(step: StepTrace) -> str:
    """Explain the bonus token."""
    if step.bonus_unused:
        return "The answer had already ended or reached its limit, so this token was not used."
    return "The target's own word: the same pass that judges the tree also says what comes next."

