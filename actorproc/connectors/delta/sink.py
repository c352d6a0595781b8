"""`DeltaTable`: the output's folder as a Delta table. Rules of its transactions: docs/protocol.md, 'Tables'."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from actorproc.config.options import parse_options
from actorproc.connectors.delta.log import DeltaLog
from actorproc.connectors.delta.schema import PARTITION, delta_fields, merged, needs_feature
from actorproc.connectors.delta.state import Action, DeltaState
from actorproc.connectors.delta.stats import stats_of
from actorproc.errors import UsageError
from actorproc.group.format_versions import VERSION
from actorproc.sinks.protocol import SinkMoved, SinkPlace
from actorproc.sinks.tables.options import TableOptions
from actorproc.sinks.tables.protocol import (
    AddedFile,
    RemovedFile,
    TableChange,
    TableHome,
    TableSink,
    TableSnapshot,
)

_FOR_EVER = "interval 36500 days"
_LEAST_CHECKPOINTS, _MOST_CHECKPOINTS, _FILES = 10, 100, 100
_CLEAN_EVERY = 3600.0


class DeltaOptions(TableOptions):
    """Options of a Delta table."""

    history: Annotated[float, Field(ge=3_600, le=10 * 366 * 86_400)] = Field(
        7 * 86_400.0, description="Seconds for which older versions of the table can be read."
    )


class DeltaTable(TableSink):
    """`delta`: the table is the folder of the output."""

    table = "within"

    def __init__(self, url: str, given: Mapping[str, Any], place: SinkPlace) -> None:
        if url.rstrip(":") != "delta":
            raise UsageError(
                f"sink {place.name} = {url}: write `delta`. The table is the output of {place.processor} itself, in "
                "its container"
            )
        self.options: DeltaOptions = parse_options(url, DeltaOptions, given, of="sink")
        self.url = "delta"
        self._place = place
        self._cleaned_at = -math.inf

    # The contract

    async def open(self, schema: pa.Schema | None, home: TableHome) -> None:
        """See `TableSink.open`."""
        self._home = home
        self._cleaned_at = self._place.clock.monotonic()
        self._log = DeltaLog(home.store, f"{home.layout.output}_delta_log/")
        self._state = DeltaState(home.layout, home.identity)
        if schema is not None:
            await self._agree(delta_fields(schema))

    async def check(self, schema: pa.Schema | None, home: TableHome) -> None:
        """See `TableSink.check`."""
        await self.open(None, home)
        wanted = [] if schema is None else delta_fields(schema)
        await self.load()
        merged(self._state.fields if self._state.version >= 0 else [], wanted)

    async def _agree(self, wanted: list[Action]) -> None:
        """Create the table, or add the columns that it lacks."""
        await self._log.refresh(self._state)
        while True:
            if self._state.version < 0:
                change = [_protocol(wanted), self._created(wanted)]
                if await self._log.append(self._state, [*change, self._told("CREATE TABLE")]):
                    return
                continue
            self._state.check()
            known = self._state.fields
            fields = merged(known, wanted)
            if fields == known:
                return
            schema = orjson.dumps({"type": "struct", "fields": fields}).decode()
            change = [{"metaData": {**self._state.metadata, "schemaString": schema}}]
            if needs_feature(fields) and not needs_feature(known):
                change.insert(0, _protocol(fields))
            if await self._log.append(self._state, [*change, self._told("ADD COLUMNS")]):
                return

    async def load(self) -> TableSnapshot:
        """See `TableSink.load`."""
        state = self._state
        await self._log.refresh(state)
        if state.version >= 0:
            state.check()
        return TableSnapshot(state.count, state.life, dict(state.places), state.files, state.version)

    async def commit(self, seen: TableSnapshot, change: TableChange) -> None:
        """See `TableSink.commit`. Entries of others in between do no harm, if what we rely on is as it was."""
        state = self._state
        while True:
            gone = [file.key for file in change.removes if self._path(file) not in state.adds]
            if state.count != seen.count or gone:
                raise SinkMoved(f"the Delta table has another count than {seen.count}, or lacks {gone[:1]}")
            state.check()
            if await self._log.append(state, self._actions(seen, change)):
                break
        await self._keep_small()

    async def named_since(self, age: float) -> set[str]:
        """See `TableSink.named_since`."""
        await self._log.refresh(self._state)
        removed = {self._state.key_of(path) for path in await self._log.removed_since(age)}
        return self._state.files.keys() | {key for key in removed if key is not None}

    def describe(self, footer: pq.FileMetaData) -> str:
        """See `TableSink.describe`."""
        return stats_of(footer)

    async def close(self) -> None:
        """See `TableSink.close`."""

    # Entries

    def _actions(self, seen: TableSnapshot, change: TableChange) -> list[Action]:
        state, now = self._state, self._now()
        new_rows = any(file.new_rows for file in change.adds)
        # delta-rs 1.6 lets an OPTIMIZE land although we have replaced its files meanwhile: their rows would be in the
        # table twice. It refuses one, as Spark does, if the columns were stated anew meanwhile.
        replaces = any(not file.rows_go for file in change.removes)
        rewrites = replaces and not new_rows and not any(file.rows_go for file in change.removes)
        return [
            self._told("OPTIMIZE" if rewrites else "WRITE", files=len(change.adds), gone=len(change.removes)),
            *([{"metaData": state.metadata}] if replaces else []),
            *state.counters(seen.count + 1, change.life, dict(change.places)),
            *(self._removed(file, now) for file in change.removes),
            *(self._added(file) for file in change.adds),
        ]

    def _added(self, file: AddedFile) -> Action:
        return {
            "add": {
                "path": self._state.path_of(file.key), "partitionValues": {PARTITION: file.partition},
                "size": file.size, "modificationTime": int(file.time * 1000), "dataChange": file.new_rows,
                "stats": file.note,
            }
        }  # fmt: skip

    def _removed(self, file: RemovedFile, now: int) -> Action:
        path = self._path(file)
        known = self._state.adds[path]
        return {
            "remove": {
                "path": path, "deletionTimestamp": now, "dataChange": file.rows_go, "extendedFileMetadata": True,
                "partitionValues": {PARTITION: known.partition}, "size": known.size,
            }
        }  # fmt: skip

    def _path(self, file: RemovedFile) -> str:
        """How the log spells it. A file that is not ours has this spelling as its key."""
        return file.key if file.key in self._state.adds else self._state.path_of(file.key)

    def _created(self, fields: Sequence[Action]) -> Action:
        return {
            "metaData": {
                "id": self._home.store.clock.nonce(), "name": self._place.processor,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": orjson.dumps({"type": "struct", "fields": fields}).decode(),
                "partitionColumns": [PARTITION],
                "configuration": {
                    # Only we delete files: VACUUM of others passes over all that are younger than this.
                    "delta.deletedFileRetentionDuration": _FOR_EVER,
                    "delta.logRetentionDuration": f"interval {max(1, round(self.options.history / 86_400))} days",
                },
                "createdTime": self._now(),
            }
        }  # fmt: skip

    def _told(self, operation: str, **what: object) -> Action:
        """For people who look at the history of the table. The nonce makes the entry unique."""
        return {
            "commitInfo": {
                "timestamp": self._now(), "operation": operation,
                "operationParameters": {name: str(value) for name, value in what.items()},
                "engineInfo": f"actorproc/{VERSION}", "txnId": self._home.store.clock.nonce(),
            }
        }  # fmt: skip

    def _now(self) -> int:
        return int(self._home.store.time.now() * 1000)

    # The size of the log

    async def _keep_small(self) -> None:
        """A checkpoint now and then: the more files the table names, the rarer."""
        state, clock = self._state, self._home.store.clock
        every = min(_MOST_CHECKPOINTS, max(_LEAST_CHECKPOINTS, len(state.adds) // _FILES))
        if state.version % every == 0:
            await self._log.write_checkpoint(state)
            if clock.monotonic() >= self._cleaned_at + _CLEAN_EVERY:
                self._cleaned_at = clock.monotonic()
                await self._log.clean(self.options.history)


def _protocol(fields: list[Action]) -> Action:
    if needs_feature(fields):
        features = {"readerFeatures": ["timestampNtz"], "writerFeatures": ["timestampNtz"]}
        return {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}
    return {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
