"""Sentences about a step, made from its trace as styled segments.

A segment is ``[style, text]``; the page puts its text into the document as text, never as markup. Styles are
``plain``, ``strong``, ``em``, ``rejected`` and ``target``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from specllava.core.metrics import judged_nodes
from specllava.core.trace import DecodeTrace, StepTrace
from specllava.core.tree import Pruned
from visual.figures.labels import END_MARK, even_choices, strip_bidi, token_label
from visual.figures.reasons import Reason, reasons

Segments = list[list[str]]
LONGEST_PATH = 80
NAMED = 3  # pruned guesses that are named


def path_text(trace: DecodeTrace, step: StepTrace, node: int, words: int = 4) -> str:
    """Join the last tokens of the branch down to ``node`` as running text."""
    path = step.tree.path(node)[-words:]
    text = strip_bidi("".join(trace.texts[step.tree.tokens[n]] for n in path)).strip()
    text = text if len(text) <= LONGEST_PATH else "…" + text[1 - LONGEST_PATH :]
    return text.lstrip(".,;: ") or text or token_label(trace, step.tree.tokens[node])


def step_sentence(trace: DecodeTrace, step: StepTrace) -> Segments:
    """Explain where a step's tree branched and which branch was taken, how far it went, and why it ended there."""
    tree, accepted = step.tree, step.emitted_nodes
    if tree.drafted == 0:
        said = token_label(trace, step.verification.bonus_token)
        return [["plain", "Nothing was drafted; the target said "], ["target", said], ["plain", "."]]
    leaves = sum(not family for family in tree.children())
    start: Segments = [
        ["plain", f"Drafted {_count(tree.drafted, 'token')} on {_count(leaves, 'branch')}; "],
        ["strong", f"{len(accepted) or 'none'} accepted"],
        ["plain", ". "],
    ]
    return _fork(trace, step) + start + _ending(trace, step)


def _fork(trace: DecodeTrace, step: StepTrace) -> Segments:
    """Describe the branching that mattered most: one at which another guess than the favourite was right."""
    forks = [judged for judged in judged_nodes(step) if len(judged.children) > 1 and judged.outcome != "missed"]
    if not forks:
        return []
    fork = next((judged for judged in forks if judged.outcome == "saved"), forks[0])
    family = sorted(fork.children, key=lambda node: -step.tree.log_probs[node])
    taken = step.emitted_nodes[fork.position]
    segments: Segments = [["plain", "Torn between "]]
    for number, node in enumerate(family[:NAMED]):
        joint = "" if not number else " and " if number == len(family) - 1 else ", "
        segments += [["plain", joint]] * bool(joint)
        segments += [["em", token_label(trace, step.tree.tokens[node])], ["plain", f" {_draft(step, node)}"]]
    if len(family) > NAMED:
        segments.append(["plain", f" and {len(family) - NAMED} more"])
    tried = {2: "both", 3: "all three"}.get(len(family), f"all {len(family)}")
    winner = token_label(trace, step.tree.tokens[taken])
    right = "was accepted. " if _sampled(trace) else "was right. "
    return [*segments, ["plain", f" it tried {tried}; "], ["strong", winner], ["plain", f" {right}"]]


def _sampled(trace: DecodeTrace) -> bool:
    """Return whether tokens were drawn, so that none of them is right or wrong."""
    return trace.config.temperature > 0


def _draft(step: StepTrace, node: int) -> str:
    return f"{math.exp(step.tree.log_probs[node]):.2f}"


def _ending(trace: DecodeTrace, step: StepTrace) -> Segments:
    if step.bonus_unused:
        if step.emitted[-1] in trace.eos_token_ids:
            return [["plain", "With "], ["em", END_MARK], ["plain", " the answer was complete."]]
        return [["plain", f"With these the answer had the {trace.config.max_new_tokens} tokens that it was allowed."]]
    last = step.verification.path[-1]
    wanted = token_label(trace, step.verification.bonus_token)
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
        ["rejected", token_label(trace, step.tree.tokens[best])],
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
    """Explain why a guess was pruned."""
    wanted = guess.token == step.view.choices[guess.parent]
    paid = trace.rule_name == "cost-aware"
    kept = "it would not have paid" if paid else "the tree keeps only its likeliest guesses"
    regret = " It is what the target wanted there." if wanted else ""
    return f"The draft thought of it, but {kept}, so the target was not asked.{regret}"


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
    if not trace.config.exact:
        return f"{odds}; chance decided {'for' if node in accepted else 'against'} it."
    depth = path.index(step.tree.parents[node])
    drawn = step.tree.tokens[accepted[depth]] if depth < len(accepted) else step.verification.bonus_token
    return f"{odds}; the target's draw fell on {'it' if node in accepted else token_label(trace, drawn)}."


def next_reason(step: StepTrace) -> str:
    """Explain the bonus token."""
    if step.bonus_unused:
        return "The answer had already ended or reached its limit, so this token was not used."
    return "The target's own word: the same pass that judges the tree also says what comes next."


def _count(number: int, noun: str) -> str:
    plural = noun + ("es" if noun.endswith("ch") else "s")
    return f"{number} {noun if number == 1 else plural}"
