"""Files of an output that stay because a table names them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KeptFiles:
    """What the tables name, or have named in the last hour, and which boundaries they have seen."""

    keys: frozenset[str] = frozenset()
    seen: Sequence[Mapping[str, int]] = ()
    """By partition, of each table."""

    def frees(self, partition: str, key: str, changes: int) -> bool:
        """Whether a file may be deleted that the boundary of `changes` does not name (rules `named` and `seen`)."""
        return key not in self.keys and all(seen.get(partition, -1) >= changes for seen in self.seen)
