"""A table in memory that knows all modes: keys with versions, replacing, refused rows. Several hosts share it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from actorproc.runtime.clock import SYSTEM
from actorproc.sinks.keyed_rows import commit_numbers, deletes, last_of_keys
from actorproc.sinks.options import SinkOptions
from actorproc.sinks.protocol import Delivery, Guarantee, Sink, SinkError, SinkMoved, SinkRefused, SinkRow


class Row(NamedTuple):
    home: str
    partition: str
    number: int
    sequence: int
    made: int


class Version(NamedTuple):
    life: int
    depth: int
    number: int


@dataclass
class Table:
    """What the target holds."""

    rows: list[Row] = field(default_factory=list)
    refused: list[Row] = field(default_factory=list)
    keys: dict[tuple[Any, ...], tuple[Version, int | None]] = field(default_factory=dict)
    """The version of each key, and `made` of its row; None: it was deleted."""
    lives: dict[str, int] = field(default_factory=dict)
    positions: dict[str, SinkRow] = field(default_factory=dict)
    is_away: bool = False
    lose_replies: int = 0
    refuses: Callable[[int], bool] = lambda made: False
    deliveries: list[Delivery] = field(default_factory=list)

    def stored(self) -> dict[str, Any]:
        names = ("rows", "refused", "keys", "lives", "positions")
        return {name: copy.copy(getattr(self, name)) for name in names}

    def restore(self, stored: dict[str, Any]) -> None:
        for name, value in stored.items():
            setattr(self, name, copy.copy(value))


class TableSink(Sink):
    """Rows have the columns `made` and `_sequence`, and those that options name."""

    guarantee = Guarantee.EXACTLY_ONCE
    can = frozenset({"upsert", "replace", "keep"})

    def __init__(self, table: Table, options: Mapping[str, Any] | None = None, url: str = "test:table") -> None:
        self.table, self.url = table, url
        self.options = SinkOptions(**(options or {}))
        self.schema = pa.schema([])

    async def open(self, schema: pa.Schema) -> None:
        self._check()
        self.schema = schema

    async def read(self, partition: str) -> SinkRow | None:
        self._check()
        return self.table.positions.get(partition)

    async def write(self, delivery: Delivery) -> None:
        self._check()
        await SYSTEM.sleep(0)
        table, options = self.table, self.options
        found = table.positions.get(delivery.partition)
        if found != delivery.was:
            raise SinkMoved(f"{found} is not {delivery.was}")
        assert delivery.rows.schema == self.schema
        assert sum(delivery.counts) == delivery.rows.num_rows
        rows = self._rows(delivery)
        bad = {row.made for row in rows if table.refuses(row.made)}
        if bad and options.on_refused == "stop":
            raise SinkRefused(f"{min(bad)} does not fit")
        self._delete(delivery)
        table.positions[delivery.partition] = delivery.now
        table.refused += [row for row in rows if row.made in bad]
        if options.mode == "upsert":
            self._upsert(delivery, bad)
        else:
            table.rows += [row for row in rows if row.made not in bad]
        table.deliveries.append(delivery)
        if table.lose_replies:
            table.lose_replies -= 1
            raise SinkError("the reply was lost")

    def _rows(self, delivery: Delivery) -> list[Row]:
        columns = (commit_numbers(delivery), delivery.rows["_sequence"], delivery.rows["made"])
        values = zip(*(column.to_pylist() for column in columns), strict=True)
        return [Row(delivery.now.home, delivery.partition, *each) for each in values]

    def _delete(self, delivery: Delivery) -> None:
        table, after = self.table, delivery.replace_after
        own = (delivery.now.home, delivery.partition)
        if delivery.begins:
            table.refused = [row for row in table.refused if row[:2] != own or row.number < delivery.since]
        if after is not None:
            table.refused = [row for row in table.refused if row[:2] != own or row.sequence <= after]
            table.rows = [row for row in table.rows if row[:2] != own or row.sequence <= after]

    def _upsert(self, delivery: Delivery, bad: set[int]) -> None:
        table, options = self.table, self.options
        life = table.lives.setdefault(delivery.registration, len(table.lives) + 1)
        numbered = delivery.rows.append_column("number", commit_numbers(delivery))
        for row in last_of_keys(numbered, [*options.key, "number"]).to_pylist():
            version = Version(life, delivery.depth, row["number"])
            key = tuple(row[name] for name in options.key)
            if row["made"] not in bad and (key not in table.keys or version >= table.keys[key][0]):
                table.keys[key] = (version, None if options.deleted and row[options.deleted] else row["made"])
        assert deletes(numbered, options.deleted).null_count == 0

    async def close(self) -> None:
        pass

    def _check(self) -> None:
        if self.table.is_away:
            raise SinkError("the table is away")
