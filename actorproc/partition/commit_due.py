"""When the next commit of a partition is due: enough waits for it, here or on this host, or it has waited enough."""

from __future__ import annotations

from actorproc.config.settings import Settings
from actorproc.errors import HandlerError
from actorproc.partition.queue_reader import Acknowledgements
from actorproc.partition.results import Results
from actorproc.runtime.budget import BufferShare, BufferTotal
from actorproc.runtime.clock import Clock

_WINDOW_SHARE = 0.5  # of the messages that a queue may deliver: processed so many, commit, so that more can come


class CommitDue:
    """Follows the results of processed records from one commit to the next.

    Args:
        held: counts the bytes that wait for a commit, over all partitions of the host.
        acknowledgements: a queue delivers a limited number of messages beyond the committed ones.
    """

    def __init__(self, settings: Settings, clock: Clock, held: BufferTotal, acknowledgements: Acknowledgements) -> None:
        self._settings, self._clock = settings, clock
        self._held = BufferShare(held)
        self._acknowledgements = acknowledgements
        self._since: float | None = None  # start of the batch that has the oldest result
        self._moved_at: float | None = None  # when the cursor first passed the last commit

    def added(self, bytes_added: int, begun: float, *, has_results: bool) -> None:
        """Results were added, of a batch that the handler got at `begun`: its rows have waited since then."""
        self._held.add(bytes_added)
        if self._since is None and has_results:
            self._since = begun

    def moved(self) -> None:
        """The cursor has passed the last commit."""
        if self._moved_at is None:
            self._moved_at = self._clock.monotonic()

    def clear(self) -> None:
        """Nothing waits any more."""
        self._since = self._moved_at = None
        self._held.clear()

    def at(self, waiting: Results) -> float | None:
        """When the next commit is due, on the clock's `monotonic`. None: nothing waits, or the handler commits."""
        settings = self._settings
        if not settings.auto_commit:
            return None
        if self._since is not None:
            return self._since + settings.commit_interval
        if self._moved_at is None:
            return None
        # Records without rows may have had effects elsewhere, and would be repeated: they count as promptly as rows.
        is_idle = not waiting.records and not self._acknowledgements.wanted
        return self._moved_at + (settings.idle_commit_interval if is_idle else settings.commit_interval)

    def is_now(self, waiting: Results, sequence: int) -> bool:
        """Whether to commit now.

        Args:
            sequence: of the latest processed record.

        Raises:
            HandlerError: too much waits on this host, but only the handler may commit (`auto_commit` is off).
        """
        settings = self._settings
        excessive = self._held.excessive()
        due = self.at(waiting)
        if due is None:
            if not settings.auto_commit:
                self._check_handler_commits(sequence, excessive)
            return False
        full = (
            waiting.rows >= settings.commit_rows
            or waiting.row_bytes >= settings.commit_bytes
            or waiting.letter_bytes >= settings.commit_dead_letter_bytes
            or self._acknowledgements.is_full(sequence, _WINDOW_SHARE)
        )
        return full or excessive or self._clock.monotonic() >= due

    def _check_handler_commits(self, sequence: int, excessive: bool) -> None:
        if excessive:
            raise HandlerError(
                f"{self._held.held} bytes of rows wait for ctx.commit() here, and on this host more than "
                f"uncommitted_bytes = {self._held.total.size} allows: commit more often, "
                "raise it, or turn auto_commit on"
            )
        if self._acknowledgements.is_full(sequence):
            raise HandlerError(
                f"max_unacknowledged = {self._settings.max_unacknowledged} messages wait for ctx.commit(), and the "
                "queue delivers no others before: commit more often, raise it, or turn auto_commit on"
            )
