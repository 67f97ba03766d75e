"""The tree of one step as data for the player: rows before and after the verdict, labels, doubts, verdicts; as a table.

Ids are those of the ``DraftTree``; the target's own next token is one more, ``len(tree)``.
"""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

import networkx as nx

from specllava.trace import DecodeTrace, StepTrace
from visual.player.labels import continues_word, is_mark, quoted, token_label

Verdict = Literal["root", "accepted", "refused", "unreached", "own"]
CODES: Final[dict[Verdict, str]] = {"root": "o", "accepted": "a", "refused": "r", "unreached": "u", "own": "n"}
NAMES: Final[dict[Verdict, str]] = {
    "root": "the last word so far", "accepted": "accepted", "refused": "refused", "unreached": "never reached",
    "own": "the large model's own",
}  # fmt: skip
LABEL_CHARACTERS: Final = 12
TORN_NATS: Final = 1.6  # at which a node is drawn hollow
PAPER: Final = 0.94  # share of paper in a hollow node
COLUMNS: Final = (
    "step", "node", "parent", "depth", "token", "text", "verdict", "draft_probability", "draft_entropy_nats",
    "target_probability", "target_rank", "target_choice", "target_choice_probability",
)  # fmt: skip
Row = tuple[int | float | str | None, ...]


@dataclass(frozen=True)
class StepTree:
    """A step with a verdict, a label and rows for every node."""

    trace: DecodeTrace
    step: StepTrace

    @property
    def own(self) -> int:
        """Id of the target's own token."""
        return len(self.step.tree)

    @cached_property
    def parents(self) -> tuple[int, ...]:
        """Parent of each node, -1 for the root; with the own token, where the answer took it."""
        own = () if self.step.bonus_unused else (self.step.verification.path[-1],)
        return (*self.step.tree.parents, *own)

    @cached_property
    def tokens(self) -> tuple[int, ...]:
        return (*self.step.tree.tokens, self.step.verification.bonus_token)[: len(self.parents)]

    @cached_property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Verdict on each node; a guess is judged where its parent is on the emitted path."""
        taken = set(self.step.emitted_nodes)
        judged = set(self.step.verification.path[: len(self.step.emitted)])
        result: list[Verdict] = ["root"]
        for node, parent in enumerate(self.parents[1:], start=1):
            if node == self.own:
                result.append("own")
            elif node in taken:
                result.append("accepted")
            else:
                result.append("refused" if parent in judged else "unreached")
        return tuple(result)

    @cached_property
    def ended(self) -> tuple[bool, ...]:
        """Which nodes of the tree end the answer or follow a node that does."""
        ended: list[bool] = []
        for token, parent in zip(self.step.tree.tokens, self.step.tree.parents, strict=True):
            ended.append(token in self.trace.eos_token_ids or (parent >= 0 and ended[parent]))
        return tuple(ended)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Short label of each node; one that goes on with a word has an ellipsis before it."""
        return tuple(self._label(node) for node in range(len(self.parents)))

    def _label(self, node: int) -> str:
        token, parent = self.tokens[node], self.parents[node]
        texts = self.trace.texts
        if parent >= 0 and continues_word(texts[self.tokens[parent]], texts[token]):
            return f"…{token_label(self.trace, token, LABEL_CHARACTERS - 1)}"
        return token_label(self.trace, token, LABEL_CHARACTERS)

    @cached_property
    def wishes(self) -> tuple[int | None, ...]:
        """The target's own token where each guess stands; ``None`` for the root and after an end."""
        choices, tree = self.step.view.choices, self.step.tree
        after = (None if self.ended[parent] else choices[parent] for parent in tree.parents[1:])
        return (None, *after)

    def rows(self, decided: bool) -> tuple[int, ...]:
        """Rows of the nodes, upwards negative: the favourite of the draft runs straight on, or the emitted branch."""
        count = len(self.parents) if decided else self.own
        first = {*self.step.emitted_nodes, self.own} if decided else set[int]()
        scores = (*self.step.tree.log_probs, 0.0)
        order = sorted(range(1, count), key=lambda node: (node not in first, -scores[node]))
        tree = nx.DiGraph()  # whose successors keep the order of the edges, the favourite first
        tree.add_nodes_from(range(count))
        tree.add_edges_from((self.parents[node], node) for node in order)
        return tuple(-height for height in tidy_heights(tree))

    def data(self) -> dict[str, object]:
        """Return columns with one entry per node.

        ``doubt`` is the share of paper in a node's fill, ``None`` where the draft was not asked. ``wish`` is the
        target's own word there, ``same`` whether it equals the guess. ``stubs`` counts pruned guesses by parent.
        """
        tree, view, ranks = self.step.tree, self.step.view, self.step.tree.sibling_ranks()
        blank = [None] * (len(self.parents) - self.own)
        wishes = [None if wish is None else self.wish_label(node) for node, wish in enumerate(self.wishes)]
        pruned: dict[int, int] = {}
        for guess in self.step.pruned:
            if not self.ended[guess.parent]:
                pruned[guess.parent] = pruned.get(guess.parent, 0) + 1
        return {
            "text": self.labels,
            "mark": [int(is_mark(label)) for label in self.labels],
            "parent": self.parents,
            "kind": "".join(CODES[verdict] for verdict in self.verdicts),
            "open": self.rows(decided=False),
            "done": self.rows(decided=True),
            "doubt": [None if e is None or self.ended[n] else _paper(e) for n, e in enumerate(tree.entropies)],
            "branch": [*(round(math.exp(score), 3) for score in tree.scores()), *blank],
            "first": [*(int(rank == 0) for rank in ranks), *blank],
            "small": [None, *(f"{math.exp(p):.2f}" for p in tree.log_probs[1:]), *blank],
            "nats": [*(None if e is None else f"{e:.2f}" for e in tree.entropies), *blank],
            "large": [None, *(f"{p:.2f}" for p in view.token_probs[1:]), *blank],
            "wish": [*wishes, *blank],
            "same": [*(int(wish == token) for wish, token in zip(self.wishes, tree.tokens, strict=True)), *blank],
            "verdict": [NAMES[verdict] for verdict in self.verdicts],
            "path": self.step.emitted_nodes,
            "stubs": list(pruned.items()),
        }

    def wish_label(self, node: int) -> str:
        """Return the label of the target's own token where a guess stands."""
        wish = self.wishes[node]
        assert wish is not None  # the caller looked
        return quoted(token_label(self.trace, wish, LABEL_CHARACTERS))


def _paper(nats: float) -> float:
    return round(PAPER * min(1.0, nats / TORN_NATS), 2)


def tidy_heights(tree: nx.DiGraph) -> tuple[int, ...]:
    """Compute the height of every node of an ordered tree in slots, upwards positive, the root 0 at 0.

    A node's favourite child is level with it. Other children's subtrees move above or below as whole blocks, which
    keep their order at every depth, so that no two edges cross.
    """
    depths = nx.single_source_shortest_path_length(tree, 0)
    rooms: dict[int, dict[int, tuple[int, int]]] = {}  # of a subtree with its root at height 0, by depth
    offsets: dict[int, int] = {}  # of a subtree's root from its parent
    for node in nx.dfs_postorder_nodes(tree, 0):
        room = rooms[node] = {}
        for child in tree.successors(node):
            own = rooms[child]
            shared = room.keys() & own.keys()
            up = max((room[depth][1] - own[depth][0] + 1 for depth in shared), default=0)
            down = min((room[depth][0] - own[depth][1] - 1 for depth in shared), default=0)
            offset = offsets[child] = up if up <= -down else down
            for depth, (low, high) in own.items():
                taken = room.get(depth, (low + offset, high + offset))
                room[depth] = (min(taken[0], low + offset), max(taken[1], high + offset))
        room[depths[node]] = (0, 0)
    heights = {0: 0}
    for parent, child in nx.dfs_edges(tree, 0):
        heights[child] = heights[parent] + offsets[child]
    return tuple(heights[node] for node in range(len(heights)))


# --- every node of every step as a row, for Measure and as CSV with full precision ----------------


def node_rows(trace: DecodeTrace) -> list[Row]:
    """Return a row per node of all steps, in the order of :data:`COLUMNS`; what is not known is ``None``."""
    return [row for number, step in enumerate(trace.steps, start=1) for row in step_rows(trace, step, number)]


def step_rows(trace: DecodeTrace, step: StepTrace, number: int) -> list[Row]:
    """Return the rows of one step: its guesses, the target's own token, and what was pruned."""
    tree, view, shown = step.tree, step.view, StepTree(trace, step)
    depths, texts = tree.depths(), trace.texts
    rows: list[Row] = []
    for node, verdict in enumerate(shown.verdicts[: shown.own]):
        drafted = node > 0
        rows.append((
            number, node, tree.parents[node] if drafted else None, depths[node], tree.tokens[node],
            texts[tree.tokens[node]], NAMES[verdict], math.exp(tree.log_probs[node]) if drafted else None,
            tree.entropies[node], view.token_probs[node] if drafted else None,
            view.token_ranks[node] + 1 if drafted else None, texts[view.choices[node]], view.choice_probs[node],
        ))  # fmt: skip
    if not step.bonus_unused:
        last, token = step.verification.path[-1], step.verification.bonus_token
        chosen = token == view.choices[last]
        rows.append((
            number, shown.own, last, depths[last] + 1, token, texts[token], NAMES["own"], None, None,
            view.choice_probs[last] if chosen else None, 1 if chosen else None, None, None,
        ))  # fmt: skip
    rows += [
        (number, None, guess.parent, depths[guess.parent] + 1, guess.token, texts[guess.token], "pruned",
         math.exp(guess.log_prob), None, None, None, None, None)
        for guess in step.pruned
    ]  # fmt: skip
    return rows


def nodes_csv(trace: DecodeTrace) -> str:
    """Write all rows as CSV; texts keep their blanks."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([["" if value is None else value for value in row] for row in node_rows(trace)])
    return text.getvalue()
