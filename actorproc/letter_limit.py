"""How many dead letters a partition may write before it stops, loudly, instead of draining a stream into them."""

from __future__ import annotations

from actorproc.errors import TooManyDeadLetters
from actorproc.settings import Settings

_FEW = 100  # records of which the share is taken at least: one bad record of the first two is no alarm


class LetterLimit:
    """Counts dead letters over the latest records of one partition, its restarts on this host included.

    Records are counted from the first one seen here; what is processed again after a restart has the same number again.
    """

    def __init__(self, settings: Settings) -> None:
        # At most once: nothing is shown to the handler again, so what fails is given up, and a limit could only lose it.
        self._share = 1.0 if settings.delivery == "at-most-once" else settings.dead_letter_limit
        self._window = settings.dead_letter_window
        self._seen = 0
        self._failed: set[int] = set()

    def passed(self, records: int) -> None:
        """So many records are processed."""
        self._seen += records

    def failed(self, index: int, error: Exception | str) -> None:
        """Record `index` after those that passed is a dead letter.

        Raises:
            TooManyDeadLetters: there are more than allowed.
        """
        at = self._seen + index
        self._failed.add(at)
        if at - min(self._failed) >= self._window:
            self._failed = {failed for failed in self._failed if failed > at - self._window}
        latest = min(self._window, max(at + 1, _FEW))
        if len(self._failed) > self._share * latest:
            cause = error if isinstance(error, Exception) else None
            raise TooManyDeadLetters(
                f"{len(self._failed)} of the latest {latest} records failed, more than dead_letter_limit = "
                f"{self._share:g} allows; nothing of this batch was committed. The last error: {error!r}"
            ) from cause
