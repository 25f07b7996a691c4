"""Merkle trees as in RFC 6962: one root stands for a list of leaves, and a short path shows that a
leaf is in the list.
"""

from collections.abc import Iterator, Sequence
from hashlib import sha256


def leaf_hash(leaf: bytes) -> bytes:
    # The two prefixes keep an inner node from passing for a leaf.
    return sha256(b"\0" + leaf).digest()


def root_of(leaves: Sequence[bytes]) -> bytes:
    """The root of a tree with at least one leaf."""
    level = [leaf_hash(leaf) for leaf in leaves]
    while len(level) > 1:
        level = _level_above(level)
    return level[0]


def path_of(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """The hashes that lead from the leaf at `index` to the root."""
    level = [leaf_hash(leaf) for leaf in leaves]
    path = []
    while len(level) > 1:
        # A node without a sibling goes up as it is.
        if (sibling := index ^ 1) < len(level):
            path.append(level[sibling])
        level, index = _level_above(level), index >> 1
    return path


def root_by(path: Sequence[bytes], leaf: bytes, *, index: int, count: int) -> bytes | None:
    """The root of a tree of `count` leaves that has this leaf at `index`, by its path. None if the
    path has another length.
    """
    steps: Iterator[bytes] = iter(path)
    node, width = leaf_hash(leaf), count
    if not 0 <= index < count:
        return None
    while width > 1:
        if index ^ 1 < width:
            sibling = next(steps, None)
            if sibling is None:
                return None
            node = _node(sibling, node) if index & 1 else _node(node, sibling)
        index, width = index >> 1, (width + 1) >> 1
    return node if next(steps, None) is None else None


def _level_above(level: Sequence[bytes]) -> list[bytes]:
    above = [_node(left, right) for left, right in zip(level[::2], level[1::2], strict=False)]
    return [*above, level[-1]] if len(level) % 2 else above


def _node(left: bytes, right: bytes) -> bytes:
    return sha256(b"\1" + left + right).digest()
