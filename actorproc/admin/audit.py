"""Audits of processors, logs and containers: one small document for each act of an operator, in a folder."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Mapping

import anyio

from actorproc.runtime.tasks import gather
from actorproc.storage.document import Document
from actorproc.storage.names import ProcessorLayout, numbered
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
    """The change, as a sentence."""
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
    """Add an act to the audit of a processor.

    Raises:
        StoreError: it is not known whether the act was recorded.
    """
    await _add(store, layout.audit, act)


async def record_now(store: Store, audit: str, what: str, to: Mapping[str, str], effect: str, reason: str = "") -> None:
    """Add an act that the user of this process has just carried out. Not even a cancellation keeps it back.

    Args:
        audit: folder of the audit: `ProcessorLayout.audit`, or `names.AUDIT` of a log or container.
        reason: see `Act.reason`.

    Raises:
        StoreError: it is not known whether the act was recorded.
    """
    act = Act(time=store.clock.wall(), who=operator(), what=what, to=to, effect=effect, reason=reason)
    with anyio.CancelScope(shield=True):
        await _add(store, audit, act)


async def _add(store: Store, audit: str, act: Act) -> None:
    await store.create(_entry(audit, act.time, store.clock.nonce()), act.to_json())


def _entry(audit: str, time: float, nonce: str) -> str:
    return audit + numbered(int(time * _AGE_UNIT), f"-{nonce}.json")


async def read_audit(store: Store, audit: str, limit: int | None = None, since: float = 0.0) -> list[Act]:
    """The acts from `since` on in order, the latest last; of more than `limit` the latest ones. `audit`: its folder.

    Raises:
        CorruptObject: an entry is corrupt.
    """
    after = _entry(audit, since, "")
    listed = [entry.key for entry in (await store.list(audit, after=after)).entries if entry.key.endswith(".json")]
    keys = listed[-limit:] if limit else listed
    stored = await gather(keys, store.get)
    return [Act.from_json(key, stored[key].body) for key in keys if stored[key] is not None]  # type: ignore[union-attr]
