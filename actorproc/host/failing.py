"""What a host cannot do at present, and since when."""

from __future__ import annotations

from typing import NamedTuple

from actorproc.runtime.clock import Clock
from actorproc.storage.store import Store

OUTAGE_SHOWN = 5.0
"""Seconds for which no request to the store was answered before the host says so: shorter ones come and go."""


class Failing(NamedTuple):
    """Something that this host cannot do. `since`: seconds since 1970."""

    text: str
    since: float


def store_outage(store: Store, clock: Clock) -> Failing | None:
    """An outage that lasts, although its requests are still repeated."""
    for outage in (store.reads, store.writes):
        if outage.since is not None and clock.wall() - outage.since > OUTAGE_SHOWN:
            return Failing(f"requests to the store fail: {outage.error}", outage.since)
    return None
