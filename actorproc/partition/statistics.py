"""Counters of one partition since its actor started on this host."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from actorproc.records import Cursor

PartitionState = Literal["opening", "running", "draining", "drained", "closing", "released", "waiting"]
"""- `drained`: everything processed is committed, and the source's `read` has not ended yet.
- `released`: drained, and about to be handed over.
- `waiting`: failed, and started again after a pause.
"""


@dataclass(slots=True)
class PartitionStatistics:
    """Progress of a partition actor since it started here."""

    partition: str
    epoch: int
    state: PartitionState = "opening"
    cursor: Cursor = field(default_factory=lambda: Cursor(""))
    """Processed up to here; committed up to `committed`."""
    committed: Cursor = field(default_factory=lambda: Cursor(""))
    caught_up: Cursor | None = None
    """`cursor` when the source first had nothing more; None: not yet."""
    records: int = 0
    rows: int = 0
    dead_letters: int = 0
    skipped: int = 0
    commits: int = 0
    lag: int | None = None
    """Records of the source after `committed`, by their sequences.

    None until reading has come to the end of the source, and again while there is a backlog: then `actorproc status`
    with a source knows it.
    """
    last_commit: datetime | None = None
    error: str | None = None
