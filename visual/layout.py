"""Where the nodes of a tree stand: depth to the right, a straight spine, no two edges crossing.

Every node has a favourite child, which stands level with it; other children's subtrees are moved above
or below as whole blocks, just far enough that no two nodes of one depth are closer than one slot. Blocks keep
their order at every depth, so edges between two depths cannot cross.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class _Block:
    """A subtree with its root at height 0: the room it takes at each depth, and where its children's blocks stand."""

    room: dict[int, tuple[float, float]]
    offsets: list[tuple[int, float]]


def tidy_heights(children: Sequence[Sequence[int]], depths: Sequence[int]) -> tuple[float, ...]:
    """Height of every node in slots, upwards positive, the root at 0.

    Args:
        children: children of every node, favourite first; a child comes after its parent.
        depths: depth of every node.
    """
    blocks: list[_Block | None] = [None] * len(children)
    for node in reversed(range(len(children))):
        blocks[node] = _assemble(children[node], depths[node], blocks)
    heights = [0.0] * len(children)
    for node, block in enumerate(blocks):
        assert block is not None  # every node was assembled above
        for child, offset in block.offsets:
            heights[child] = heights[node] + offset
    return tuple(heights)


def _assemble(family: Sequence[int], depth: int, blocks: Sequence[_Block | None]) -> _Block:
    whole = _Block({}, [])
    for child in family:
        block = blocks[child]
        assert block is not None  # children come after their parent, so they are assembled first
        shared = whole.room.keys() & block.room.keys()
        up = max((whole.room[d][1] - block.room[d][0] + 1 for d in shared), default=0.0)
        down = min((whole.room[d][0] - block.room[d][1] - 1 for d in shared), default=0.0)
        offset = up if up <= -down else down
        whole.offsets.append((child, offset))
        for d, (low, high) in block.room.items():
            known = whole.room.get(d, (low + offset, high + offset))
            whole.room[d] = (min(known[0], low + offset), max(known[1], high + offset))
    whole.room[depth] = (0.0, 0.0)
    return whole
