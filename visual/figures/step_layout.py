"""Layout of one step: a column per depth, a row per branch. Columns in pixels, rows in slots.

Ids are those of the ``DraftTree``; the target's own next token is one more, ``len(tree)``, and the guesses that
were pruned before the target saw them come after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise

from specllava.trace import DecodeTrace, StepTrace
from visual.figures.labels import continues_word, token_label
from visual.figures.layout import ordered_tree, tidy_heights
from visual.figures.charts import Verdict, verdicts

LABEL_CHARACTERS = 10
CHARACTER = 7.4  # pixels of a bold letter, on the wide side
BETWEEN = 9  # pixels between two labels
NARROW, COLUMN = 30, 52  # pixels between depths: at the least, and where there is room
SHOWN_DEPTHS = 18  # depths that fit without scrolling on a laptop
FOLDED = 13  # pixels between depths where nothing branches and nothing changes
SHORTEST_FOLD = 3  # depths
CROWDED = 22  # rows beyond which never-reached nodes lose their label


@dataclass(frozen=True)
class StepLayout:
    """A step with column, row and label of every node."""

    trace: DecodeTrace
    step: StepTrace

    @property
    def next_node(self) -> int:
        """Id of the target's own token."""
        return len(self.step.tree)

    @cached_property
    def pruned(self) -> range:
        """Ids of the pruned guesses."""
        return range(self.next_node + 1, self.next_node + 1 + len(self.step.pruned))

    @cached_property
    def parents(self) -> tuple[int, ...]:
        """Parent of each node; -1 for the root."""
        return (*self.step.tree.parents, self.step.verification.path[-1], *(p.parent for p in self.step.pruned))

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Edges between the root and each node."""
        depths = list(self.step.tree.depths())
        for parent in self.parents[len(depths) :]:
            depths.append(depths[parent] + 1)
        return tuple(depths)

    @cached_property
    def tokens(self) -> tuple[int, ...]:
        """Id of each node's token."""
        pruned = (guess.token for guess in self.step.pruned)
        return (*self.step.tree.tokens, self.step.verification.bonus_token, *pruned)

    @cached_property
    def log_probs(self) -> tuple[float, ...]:
        """Of the draft; 0.0 for the target's own token, which comes first among its siblings."""
        return (*self.step.tree.log_probs, 0.0, *(guess.log_prob for guess in self.step.pruned))

    @cached_property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdict on each node."""
        pruned: list[Verdict] = ["pruned"] * len(self.step.pruned)
        return (*verdicts(self.step), "next", *pruned)

    @cached_property
    def ended(self) -> tuple[bool, ...]:
        """Which nodes end the answer or follow a node that does."""
        ended: list[bool] = []
        for token, parent in zip(self.step.tree.tokens, self.step.tree.parents, strict=True):
            ended.append(token in self.trace.eos_token_ids or (parent >= 0 and ended[parent]))
        return tuple(ended)

    @cached_property
    def entropies(self) -> tuple[float | None, ...]:
        """The draft's after each node of the tree, in nats; ``None`` where it was not asked, and after an end."""
        known = zip(self.step.tree.entropies, self.ended, strict=True)
        return tuple(None if ended else entropy for entropy, ended in known)

    @cached_property
    def hidden(self) -> frozenset[int]:
        """Ids of what is not drawn: a bonus token that was not used, and guesses pruned after an end."""
        unsaid = {self.next_node} if self.step.bonus_unused else set()
        return frozenset(unsaid | {node for node in self.pruned if self.ended[self.parents[node]]})

    @cached_property
    def heights(self) -> tuple[int, ...]:
        """Rows of all nodes but the pruned ones. The emitted branch is the spine: it runs straight through."""
        return self._heights(self.next_node + 1)

    @cached_property
    def heights_with_pruned(self) -> tuple[int, ...]:
        """Rows if the pruned guesses are drawn as well."""
        return self._heights(len(self.parents))

    @property
    def rows(self) -> int:
        """Rows from the lowest node to the highest, both counted."""
        return max(self.heights) - min(self.heights) + 1

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The label above each node, "" for none; that of a fold counts its nodes."""
        labels = [self._label(node) for node in range(len(self.tokens))]
        folds = {depth: fold for fold in self._folds for depth in fold}
        for node, depth in enumerate(self.depths[: self.next_node]):
            if depth in folds:
                fold = folds[depth]
                labels[node] = f"+{len(fold)}" if depth == fold[len(fold) // 2] else ""
        if self.rows > CROWDED:
            labels = ["" if v == "unreached" else label for label, v in zip(labels, self.verdicts, strict=True)]
        return tuple(labels)

    @cached_property
    def columns(self) -> tuple[int, ...]:
        """Pixels from the root for every depth: far enough apart for all labels, no farther than there is room."""
        wide, narrow = self._columns(COLUMN, self.labels), self._columns(NARROW, self.labels)
        excess = wide[-1] - narrow[-1]
        share = 1.0 if excess <= 0 else min(1.0, max(0.0, (self.width - narrow[-1]) / excess))
        return tuple(round(n + share * (w - n)) for n, w in zip(narrow, wide, strict=True))

    @property
    def width(self) -> int:
        """Pixels for which the run's pictures are made; a step that needs more is scrolled."""
        return COLUMN * (min(self.trace.config.depth, SHOWN_DEPTHS) + 1)

    def _label(self, node: int) -> str:
        """Return a token's short label; one that goes on with a word has an ellipsis before it."""
        token, parent = self.tokens[node], self.parents[node]
        if node in self.hidden:
            return ""
        texts = self.trace.texts
        if parent >= 0 and continues_word(texts[self.tokens[parent]], texts[token]):
            return f"…{token_label(self.trace, token, LABEL_CHARACTERS - 1)}"
        return token_label(self.trace, token, LABEL_CHARACTERS)

    def _heights(self, count: int) -> tuple[int, ...]:
        emitted = {*self.step.verification.path, self.next_node}
        families: list[list[int]] = [[] for _ in range(count)]
        for node in range(1, count):
            families[self.parents[node]].append(node)
        return tidy_heights(
            ordered_tree([sorted(f, key=lambda n: (n not in emitted, -self.log_probs[n])) for f in families])
        )

    def _columns(self, apart: float, labels: Sequence[str]) -> list[float]:
        folded = {depth for fold in self._folds for depth in fold}
        columns, room = [0.0], dict[int, float]()  # room: where the last label of a row ends
        labelled: list[list[int]] = [[] for _ in range(max(self.depths) + 1)]
        for node in range(self.next_node + 1):
            if labels[node]:
                labelled[self.depths[node]].append(node)
        for depth, here in enumerate(labelled):
            if depth:
                columns.append(columns[-1] + (FOLDED if depth in folded or depth - 1 in folded else apart))
            halves = {n: len(labels[n]) * CHARACTER / 2 for n in here}
            needed = (room[self.heights[n]] + BETWEEN + halves[n] for n in here if self.heights[n] in room)
            columns[-1] = max(columns[-1], *needed, 0.0)
            room |= {self.heights[n]: columns[-1] + halves[n] for n in here}
        return columns

    @cached_property
    def _folds(self) -> tuple[tuple[int, ...], ...]:
        """Runs of depths in which nothing branches and no verdict changes; none while everything fits."""
        if max(self.depths) <= SHOWN_DEPTHS + 1:
            return ()
        children: list[list[int]] = [[] for _ in range(self.next_node + 1)]
        for node in range(1, self.next_node + 1):
            children[self.parents[node]].append(node)
        busy = {self.depths[n] for n in range(self.next_node + 1) if not self._plain(n, children)}
        quiet = [depth for depth in range(max(self.depths)) if depth not in busy]
        runs = (tuple(d for _, d in run) for _, run in groupby(enumerate(quiet), key=lambda pair: pair[1] - pair[0]))
        return tuple(run for run in runs if len(run) >= SHORTEST_FOLD)

    def _plain(self, node: int, children: Sequence[Sequence[int]]) -> bool:
        """Return whether a node lies inside a run: one child, no siblings, the same verdict before and after."""
        if node == 0 or len(children[node]) != 1 or len(children[self.parents[node]]) != 1:
            return False
        run = (self.parents[node], node, children[node][0])
        return all(self.verdicts[a] == self.verdicts[b] for a, b in pairwise(run))
