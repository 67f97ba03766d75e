"""Heights of a tree's nodes: depth to the right, a straight spine, no two edges crossing.

Every node has a favourite child, level with it; other children's subtrees are moved above
or below as whole blocks. Two nodes of one depth are at least one slot apart. Blocks keep
their order at every depth, so edges between two depths cannot cross.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx


@dataclass(slots=True)
class _Block:
    """A subtree with its root at height 0: its room at each depth, and the offsets of its children's blocks."""

    room: dict[int, tuple[int, int]]
    offsets: list[tuple[int, int]]


def ordered_tree(children: Sequence[Sequence[int]]) -> nx.DiGraph:
    """Make a graph of children lists, favourite first, whose successors keep that order. Node 0 is the root."""
    tree = nx.DiGraph()
    tree.add_nodes_from(range(len(children)))
    tree.add_edges_from((node, child) for node, family in enumerate(children) for child in family)
    return tree


def tidy_heights(tree: nx.DiGraph) -> tuple[int, ...]:
    """Compute the height of every node of an ordered tree in slots, upwards positive, the root 0 at 0."""
    depths = nx.single_source_shortest_path_length(tree, 0)
    blocks: dict[int, _Block] = {}
    for node in nx.dfs_postorder_nodes(tree, 0):
        blocks[node] = _assemble(tree.successors(node), depths[node], blocks)
    heights = {0: 0}
    for node in nx.dfs_preorder_nodes(tree, 0):
        for child, offset in blocks[node].offsets:
            heights[child] = heights[node] + offset
    return tuple(heights[node] for node in range(len(heights)))


def _assemble(family: Iterable[int], depth: int, blocks: Mapping[int, _Block]) -> _Block:
    """Move the children's blocks apart and join them to the block of their parent at ``depth``."""
    whole = _Block({}, [])
    for child in family:
        block = blocks[child]
        shared = whole.room.keys() & block.room.keys()
        up = max((whole.room[d][1] - block.room[d][0] + 1 for d in shared), default=0)
        down = min((whole.room[d][0] - block.room[d][1] - 1 for d in shared), default=0)
        offset = up if up <= -down else down
        whole.offsets.append((child, offset))
        for d, (low, high) in block.room.items():
            taken = whole.room.get(d, (low + offset, high + offset))
            whole.room[d] = (min(taken[0], low + offset), max(taken[1], high + offset))
    whole.room[depth] = (0, 0)
    return whole
