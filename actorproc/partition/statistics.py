"""Counters of one partition since its actor started on this host."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from actorproc.records import Cursor

PartitionState = Literal["opening", "running", "draining", "drained", "closing", "released", "waiting"]
"""- `drained`: everything processed is committed, and the source's `read` has not ended yet.
- `released`: drained, and about to be handed over.
- `waiting`: failed, and started again after a pause.
"""


@dataclass(slots=True)
class PartitionStatistics:
    """Counters of one partition actor. Times are seconds since 1970 by this host's clock."""

    partition: str
    epoch: int
    state: PartitionState = "opening"
    cursor: Cursor = field(default_factory=lambda: Cursor(""))
    """Processed up to here; committed up to `committed`."""
    committed: Cursor = field(default_factory=lambda: Cursor(""))
    records: int = 0
    rows: int = 0
    dead_letters: int = 0
    skipped: int = 0
    commits: int = 0
    last_commit: float | None = None
    error: str | None = None
