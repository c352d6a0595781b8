"""The audit of a processor: one small document for each act of an operator, below `audit/`."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Mapping

from actorproc.runtime.tasks import gather
from actorproc.storage.document import Document
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store

_AGE_UNIT = 1_000_000  # keys count microseconds, so that they sort by time


class Act(Document, frozen=True):
    """An act of an operator. `time`: seconds since 1970 by the operator's clock."""

    time: float
    who: str
    what: str
    """The act, such as `pause`."""
    to: Mapping[str, str] = {}
    """Its arguments."""
    effect: str = ""
    """What it changed, as a sentence."""
    reason: str = ""
    """Why, in the operator's words."""

    @property
    def text(self) -> str:
        """The act with its arguments, such as `move host h1 partition 5`."""
        return " ".join([self.what, *(f"{name} {value}" for name, value in self.to.items() if name != "command")])


def operator() -> str:
    """The user of this process, as `user@machine`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run under an id without a name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


async def record(store: Store, layout: ProcessorLayout, act: Act) -> None:
    """Add an act to the audit.

    Raises:
        StoreError: it is not known whether the act was recorded.
    """
    await store.create(layout.audit_entry(int(act.time * _AGE_UNIT), store.clock.nonce()), act.to_json())


async def read_audit(store: Store, layout: ProcessorLayout, limit: int | None = None, since: float = 0.0) -> list[Act]:
    """The acts from `since` on in order, the latest last; of more than `limit` the latest ones.

    Raises:
        CorruptObject: an entry is corrupt.
    """
    after = layout.audit_entry(int(since * _AGE_UNIT), "")
    listed = [
        entry.key for entry in (await store.list(layout.audit, after=after)).entries if entry.key.endswith(".json")
    ]
    keys = listed[-limit:] if limit else listed
    stored = await gather(keys, store.get)
    return [Act.from_json(key, stored[key].body) for key in keys if stored[key] is not None]  # type: ignore[union-attr]
