"""A Delta log in our own store: loads it, appends entries, writes checkpoints, and deletes old entries."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson
import pyarrow as pa

from actorproc.connectors.delta.checkpoint import read_checkpoint, write_checkpoint
from actorproc.connectors.delta.state import Action, DeltaState
from actorproc.errors import CorruptObject
from actorproc.retention.boundary import RETENTION
from actorproc.runtime.clock import LONG_AGO
from actorproc.runtime.tasks import gather
from actorproc.storage.backend import Entry
from actorproc.storage.store import Conflict, Store

_DIGITS = 20

_SURE = RETENTION / 2
"""Seconds for which nobody can have deleted the entry after the newest one, after that was seen. Entries are deleted an
hour after a checkpoint behind them was written."""

_AT_ONCE = 64  # entries that are fetched together
_NAME = re.compile(r"(\d{20})(?:\.json|\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet)")
_REPAIR = "restore it, or delete the whole _delta_log: `actorproc sinks repair` then makes it anew"


class _Checkpoint(NamedTuple):
    version: int
    keys: Sequence[str]
    """Of its parts."""


class DeltaLog:
    """The log in the folder `folder`, and its state as it was last loaded here."""

    def __init__(self, store: Store, folder: str) -> None:
        self._store, self._folder = store, folder
        self._hint = f"{folder}_last_checkpoint"
        self._looked_at = LONG_AGO

    async def refresh(self, state: DeltaState) -> None:
        """Bring the state to the newest version. Two small requests, if there is no new entry.

        Raises:
            CorruptObject: entries are missing.
        """
        began = self._store.clock.moment()
        if state.version >= 0 and await self._store.get(self._key(state.version), tail=1) is None:
            state.clear()  # it is old, or somebody has deleted the log, and it may have been made anew
        if state.version < 0:
            await self._load(state)
        while (entry := await self.entry(state.version + 1)) is not None:
            state.apply(state.version + 1, entry)
        self._looked_at = began

    async def entry(self, version: int) -> list[Action] | None:
        """The actions of a version; None: there is none yet."""
        key = self._key(version)
        stored = await self._store.get(key)
        return None if stored is None else _actions(key, stored.body)

    async def append(self, state: DeltaState, actions: Sequence[Action]) -> bool:
        """Create the next entry. False: another writer has created it, or may have, and the state has gone on.

        A writer that slept could create the entry anew after others have deleted it, where no reader looks.

        Raises:
            StoreUnavailable: not settled; the entry may still be created, unless another one is.
        """
        if self._slept():
            await self.refresh(state)
            return False
        version = state.version + 1
        body = b"\n".join(orjson.dumps(action) for action in actions) + b"\n"
        try:
            await self._store.create(self._key(version), body)
        except Conflict:
            await self.refresh(state)
            return False
        if self._slept():  # meanwhile: it may be an entry that others had deleted
            state.clear()
            await self.refresh(state)
            return False
        state.apply(version, actions)
        return True

    def _slept(self) -> bool:
        return self._store.clock.since(self._looked_at) > _SURE

    def _key(self, version: int) -> str:
        return f"{self._folder}{version:0{_DIGITS}d}.json"

    # Loading

    async def _load(self, state: DeltaState) -> None:
        """Read the newest checkpoint, and the entries behind it."""
        listed = (await self._store.list(self._folder, await self._before_hint())).entries
        checkpoint = newest_checkpoint(listed)
        if checkpoint is not None:
            await self._read_checkpoint(state, checkpoint)
        versions = sorted(v for v in map(self._version, listed) if v is not None and v > state.version)
        for start in range(0, len(versions), _AT_ONCE):
            some = versions[start : start + _AT_ONCE]
            found = await gather(some, self.entry)
            for version in some:
                actions = found[version]
                if version != state.version + 1 or actions is None:
                    raise CorruptObject(self._key(state.version + 1), f"is missing, and later entries exist; {_REPAIR}")
                state.apply(version, actions)
        if state.version >= 0 and not (state.metadata and state.protocol):
            raise CorruptObject(self._key(0), f"the log does not say the columns of the table; {_REPAIR}")

    async def _before_hint(self) -> str:
        """The key after which to list: before the newest checkpoint that is known, or "". It may be outdated."""
        if (stored := await self._store.get(self._hint)) is None:
            return ""
        try:
            version = int(orjson.loads(stored.body)["version"])
        except (ValueError, KeyError, TypeError):
            return ""
        before = self._key(version - 1) if version else ""
        first = (await self._store.list(self._folder, before, 8)).entries
        return before if any(self._checkpoint_version(entry) == version for entry in first) else ""

    async def _read_checkpoint(self, state: DeltaState, checkpoint: _Checkpoint) -> None:
        stored = await gather(checkpoint.keys, self._store.get)
        parts = [found.body for found in stored.values() if found is not None]
        if len(parts) < len(checkpoint.keys):
            raise CorruptObject(checkpoint.keys[0], f"is missing; {_REPAIR}")
        try:
            actions = await self._store.clock.run_in_thread(lambda: list(read_checkpoint(parts)))
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise CorruptObject(checkpoint.keys[0], f"cannot be read ({error}); {_REPAIR}") from None
        state.apply(checkpoint.version, actions)

    def _version(self, entry: Entry) -> int | None:
        name = entry.key.removeprefix(self._folder)
        return int(name[:_DIGITS]) if _NAME.fullmatch(name) and name.endswith(".json") else None

    def _checkpoint_version(self, entry: Entry) -> int | None:
        name = entry.key.removeprefix(self._folder)
        return int(name[:_DIGITS]) if _NAME.fullmatch(name) and name.endswith(".parquet") else None

    # Keeping it small

    async def write_checkpoint(self, state: DeltaState) -> None:
        """Write the state as a checkpoint, then the hint to it. Several at once write the same."""
        body, actions = await self._store.clock.run_in_thread(write_checkpoint, state)
        await self._store.put(f"{self._folder}{state.version:0{_DIGITS}d}.checkpoint.parquet", body)
        hint: dict[str, Any] = {"version": state.version, "size": actions, "sizeInBytes": len(body)}
        await self._store.put(self._hint, orjson.dumps({**hint, "numOfAddFiles": len(state.adds)}))

    async def clean(self, keep: float) -> int:
        """Delete entries and checkpoints before the newest checkpoint that is older than `keep` seconds."""
        listing = await self._store.list(self._folder)
        old = [entry for entry in listing.entries if listing.now - entry.modified >= keep]
        if (checkpoint := newest_checkpoint(old)) is None:
            return 0
        gone = [
            entry.key
            for entry in old
            if (name := _NAME.fullmatch(entry.key.removeprefix(self._folder))) and int(name[1]) < checkpoint.version
        ]
        for start in range(0, len(gone), _AT_ONCE):
            await gather(gone[start : start + _AT_ONCE], self._store.delete)
        return len(gone)

    async def removed_since(self, age: float) -> set[str]:
        """Paths of files that entries of the last `age` seconds remove."""
        listing = await self._store.list(self._folder)
        recent = [
            version
            for entry in listing.entries
            if (version := self._version(entry)) is not None and listing.now - entry.modified <= age
        ]
        found = await gather(recent, self.entry)
        return {
            action["remove"]["path"] for actions in found.values() for action in actions or () if "remove" in action
        }


def newest_checkpoint(entries: Sequence[Entry]) -> _Checkpoint | None:
    """The newest checkpoint of which all parts are listed."""
    found: dict[int, dict[int, list[str]]] = {}  # version -> number of parts -> keys
    for entry in entries:
        name = _NAME.fullmatch(entry.key.rpartition("/")[2])
        if name is not None and name[0].endswith(".parquet"):
            found.setdefault(int(name[1]), {}).setdefault(int(name[3] or 1), []).append(entry.key)
    for version in sorted(found, reverse=True):
        for parts, keys in found[version].items():
            if len(keys) == parts:
                return _Checkpoint(version, sorted(keys))
    return None


def _actions(key: str, body: bytes) -> list[Action]:
    try:
        return [orjson.loads(line) for line in body.split(b"\n") if line.strip()]
    except ValueError as error:
        raise CorruptObject(key, f"is no entry of a Delta log ({error}); {_REPAIR}") from None
