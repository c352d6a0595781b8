"""Which objects of a manifest are merged into one: few objects, and each value is written again only a few times."""

from __future__ import annotations

from collections.abc import Sequence

SLACK = 4 * 2**20
"""Bytes that a manifest may hold beyond twice the state."""


def first_merged(sizes: Sequence[int], live: int) -> int:
    """The index from which the objects of a manifest are merged into one; their number if none are.

    From the end, objects are taken as long as the next older one is no larger than all that are taken. So each object
    that is left is larger than all later ones together, and their number grows with the logarithm of the state. If the
    objects hold more than twice the state and `SLACK`, all are merged.

    Args:
        sizes: bytes of the objects, oldest first.
        live: bytes of the state.
    """
    if sum(sizes) > 2 * live + SLACK:
        return 0
    first, taken = len(sizes), 0
    while first and (not taken or sizes[first - 1] <= taken):
        first -= 1
        taken += sizes[first]
    return first if first < len(sizes) - 1 else len(sizes)
