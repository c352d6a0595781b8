"""How far a table is, as its committer notes it for operators. Trims ask the table itself."""

from __future__ import annotations

import msgspec

from actorproc.retention.readers import SinkEntry
from actorproc.storage.document import Document, SharedDocument
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store


class TableProgress(Document, frozen=True):
    """Written after transactions. It never leads."""

    term: str = ""
    """Of the registration."""
    count: int = 0
    """Transactions so far."""
    table_version: int | str = 0
    """Of the table, as its format counts."""
    positions: dict[str, int] = msgspec.field(default_factory=dict)
    """Number of the next commit to take, by partition."""
    fenced: bool = False
    """The table was paused, and no transaction that was under way then can land any more."""
    pause: str = ""
    """Which pause that was: `SinkEntry.pause`."""
    host: str = ""
    """That made the latest transaction, or failed to."""
    time: float = 0.0
    """Of the latest transaction, in seconds since 1970."""
    error: str | None = None
    """Why there are no transactions now."""
    refuses: bool = False
    """It would refuse again: somebody must mend it."""

    def is_fenced(self, entry: SinkEntry) -> bool:
        """Whether the pause that the entry has now is fenced."""
        return self.fenced and (self.term, self.pause) == (entry.term, entry.pause)


def table_progress(store: Store, layout: ProcessorLayout, table: str) -> SharedDocument[TableProgress]:
    return SharedDocument(store, f"{layout.sinks}{table}.json", TableProgress)
