"""Hints: each producer says where it has appended, so an idle log costs its readers one LIST per host and poll.

A hint is a small document in the folder `heads/`. The producer makes it `open` before its first append after a pause.
It stays open until it names everything that was appended. If an open hint no longer changes, the producer may have died
between an append and the hint. Then readers look for new segments themselves, at the ages `SWEEP_AGES`.

A busy producer rewrites its hint all the time, so readers would never look. So after an append whose outcome is
unknown, the producer writes a second hint, which stays open and unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from actorproc.errors import CorruptObject
from actorproc.runtime.logger import get_logger
from actorproc.storage.backend import Listing
from actorproc.storage.document import Document
from actorproc.storage.names import LOG_HINTS, is_log_hint
from actorproc.storage.store import Store

State = Literal["open", "idle", "closed"]

SWEEP_AGES = [30.0 * 2**k for k in range(7)]
"""Ages of an open hint, in seconds, at which readers look for segments.

A write can land up to 20 minutes after its producer sent it (S3 refuses requests that were signed earlier); the last
look is after 32 minutes.
"""

log = get_logger(__name__)


class Hint(Document, frozen=True):
    """The document. `newest`: partition -> base of the newest segment that the producer knows of."""

    producer: str
    state: State
    newest: Mapping[str, int] = {}


async def list_hints(store: Store) -> Listing:
    """The hints in the log."""
    listing = await store.list(LOG_HINTS)
    return replace(listing, entries=[entry for entry in listing.entries if is_log_hint(entry.key)])


async def read_hint(store: Store, key: str) -> Hint | None:
    """The hint, or None if it is gone or corrupt."""
    stored = await store.get(key)
    try:
        return Hint.from_json(key, stored.body) if stored else None
    except CorruptObject as error:
        log.warning("log.hint_corrupt", key=key, error=str(error))
        return None
