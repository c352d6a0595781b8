"""The results that wait for a partition's next commit, and when that commit is due."""

from __future__ import annotations

from actorproc.config.settings import Settings
from actorproc.counts import Counts
from actorproc.errors import HandlerError
from actorproc.partition.pending import Pending
from actorproc.partition.queue_reader import QueueReader
from actorproc.records import Batch
from actorproc.runtime.budget import BufferShare, BufferTotal
from actorproc.runtime.clock import Clock

_WINDOW_SHARE = 0.5  # of the messages that a queue may deliver: processed so many, commit, so that more can come


class Uncommitted:
    """Results of processed records since the last commit.

    Args:
        held: counts the bytes that wait for a commit, over all partitions of the host.
        queue: delivers a limited number of messages beyond the committed ones, if the source is a queue.
    """

    def __init__(self, settings: Settings, clock: Clock, held: BufferTotal, queue: QueueReader | None) -> None:
        self._settings, self._clock = settings, clock
        self._held = BufferShare(held)
        self._queue = queue
        self._since: float | None = None  # start of the batch that has the oldest result
        self._moved_at: float | None = None  # when the cursor first passed the last commit
        self._state_changed = False
        self.row_bytes = self.letter_bytes = 0  # changes of state count as rows
        self.results = Pending()
        """Without changes of state, which `PartitionState` holds."""
        self.new = Counts()
        """Of the records since the last commit."""
        self.counted = -1
        """Sequence up to which records are in the totals."""

    @property
    def has_results(self) -> bool:
        """Whether a commit needs a file. Without results it only moves the checkpoint."""
        return bool(self.new.rows or self.results.letters or self._state_changed)

    def add(self, batch: Batch, upto: int, results: Pending, state_bytes: int, begun: float) -> int:
        """Add the results of the records of `batch` up to sequence `upto`.

        Args:
            state_bytes: size of the changes of keyed state.
            begun: when the handler got the batch, on the clock's `monotonic`: its rows have waited since then.

        Returns:
            How many records these are.
        """
        records = batch.count_upto(upto) - batch.count_upto(self.counted)
        self.counted = max(self.counted, upto)
        self.new += Counts(records, results.rows, len(results.letters), results.skipped)
        row_bytes, letter_bytes = results.row_bytes + state_bytes, results.letter_bytes
        self.results.tables += results.tables
        self.results.letters |= results.letters
        self._state_changed = self._state_changed or bool(results.changes)
        self._held.add(row_bytes + letter_bytes)
        self.row_bytes += row_bytes
        self.letter_bytes += letter_bytes
        if self._since is None and self.has_results:
            self._since = begun
        return records

    def moved(self) -> None:
        """The cursor has passed the last commit."""
        self._moved_at = self._moved_at or self._clock.monotonic()

    def clear(self) -> None:
        """Drop the results: they are committed, or never will be."""
        self.results, self.new, self.row_bytes, self.letter_bytes = Pending(), Counts(), 0, 0
        self._since = self._moved_at = None
        self._state_changed = False
        self._held.clear()

    def due_at(self) -> float | None:
        """When the next commit is due, on the clock's `monotonic`. None: nothing waits, or the handler commits."""
        settings = self._settings
        if not settings.auto_commit:
            return None
        if self._since is not None:
            return self._since + settings.commit_interval
        if self._moved_at is None:
            return None
        # Records without rows may have had effects elsewhere, and would be repeated: they count as promptly as rows.
        is_idle = not self.new.records and self._queue is None
        return self._moved_at + (settings.idle_commit_interval if is_idle else settings.commit_interval)

    def is_due(self, sequence: int) -> bool:
        """Whether to commit now: enough rows wait, here or on this host, or they have waited long enough.

        Args:
            sequence: of the latest processed record.

        Raises:
            HandlerError: too much waits on this host, but only the handler may commit (`auto_commit` is off).
        """
        settings = self._settings
        excessive = self._held.excessive()
        due = self.due_at()
        if due is None:
            if not settings.auto_commit:
                self._check_handler_commits(sequence, excessive)
            return False
        full = (
            self.new.rows >= settings.commit_rows
            or self.row_bytes >= settings.commit_bytes
            or self.letter_bytes >= settings.commit_dead_letter_bytes
            or (self._queue is not None and self._queue.is_full(sequence, _WINDOW_SHARE))
        )
        return full or excessive or self._clock.monotonic() >= due

    def _check_handler_commits(self, sequence: int, excessive: bool) -> None:
        if excessive:
            raise HandlerError(
                f"{self._held.held} bytes of rows wait for ctx.commit() here, and on this host more than "
                f"uncommitted_bytes = {self._held.total.size} allows: commit more often, "
                "raise it, or turn auto_commit on"
            )
        if self._queue is not None and self._queue.is_full(sequence):
            raise HandlerError(
                f"max_unacknowledged = {self._settings.max_unacknowledged} messages wait for ctx.commit(), and the "
                "queue delivers no others before: commit more often, raise it, or turn auto_commit on"
            )
