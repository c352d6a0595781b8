"""The targets of the sinks of a run: the options of each sink, and the rows that its target holds at the end."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import orjson

from actorproc.retention.boundary import Boundary
from tests.chaos.verdict import Row

COLUMNS = (
    "_sequence", "producer", "number", "part", "parts", "host", "epoch", "attempt", "token", "count", "session", "gone",
    "twice",
)  # fmt: skip
"""Of the rows that are compared."""
TEXTS = ("producer", "host", "token")

Held = tuple[str, tuple[Any, ...]]
"""A row as it is compared: its partition, and its columns."""


@dataclass(frozen=True)
class Output:
    """What is committed. `commits`: rows by partition, by commit."""

    commits: Mapping[str, Sequence[Sequence[Row]]]
    boundaries: Mapping[str, Boundary]

    def rows(self) -> Iterator[Row]:
        """All of them, in the order of each partition, with the column `_partition`."""
        return self._between({}, {})

    def kept(self) -> Iterator[Row]:
        """Those that no trim has deleted."""
        return self._between({name: found.lowest for name, found in self.boundaries.items()}, {})

    def beside_kept(self) -> Iterator[Row]:
        """Those that a trim has deleted, and that are in a compacted file with others that are kept."""
        first = {
            name: found.ranges[0].first if found.ranges else found.lowest for name, found in self.boundaries.items()
        }
        return self._between(first, {name: found.lowest for name, found in self.boundaries.items()})

    def _between(self, first: Mapping[str, int], stop: Mapping[str, int]) -> Iterator[Row]:
        for name, commits in self.commits.items():
            for rows in commits[first.get(name, 0) : stop.get(name)]:
                yield from ({**row, "_partition": name} for row in rows)


def held(row: Row, columns: Sequence[str] = COLUMNS, *, partition: str = "_partition") -> Held:
    """The row as it is compared; a column that it does not have is null."""
    return str(row[partition]), tuple(row.get(column) for column in columns)


class Target(ABC):
    """The target of one sink.

    Args:
        url: of the sink.
    """

    repeats = True
    """Whether a redelivery adds rows that are there."""
    is_table = False

    def __init__(self, url: str) -> None:
        self._url = url

    def options(self) -> Mapping[str, Any]:
        """Of the sink, with its URL."""
        return {"url": self._url}

    @abstractmethod
    def rows(self) -> Iterable[Held]:
        """All rows that it holds."""

    def expected(self, output: Output) -> Iterable[Held]:
        """All rows that it should hold: each committed row."""
        return map(held, output.rows())

    def allowed(self, output: Output) -> Iterable[Held]:
        """Other rows that it may hold, each once."""
        return ()

    def faults(self) -> list[str]:
        """Whatever else is wrong."""
        return []

    @property
    def note(self) -> str:
        """For the summary."""
        return ""


class PostgresTable(Target):
    """A table, to which each row is added."""

    table: ClassVar[str] = "chaos"
    columns: ClassVar[Sequence[str]] = COLUMNS

    def options(self) -> Mapping[str, Any]:
        return {"url": self._url, "table": self.table}

    def rows(self) -> Iterator[Held]:
        import psycopg

        names = ", ".join(f'"{column}"' for column in ("_partition", *self.columns))
        with psycopg.connect(self._url) as connection:
            for partition, *values in connection.execute(f"SELECT {names} FROM {self.table}"):
                yield partition, tuple(values)


class NewestInPostgres(PostgresTable):
    """A table with the newest row of each key. A row of which `gone` is true deletes its key."""

    table = "newest"
    columns = tuple(column for column in COLUMNS if column != "gone")
    repeats = False
    key = ("producer", "number", "part")

    def options(self) -> Mapping[str, Any]:
        return {**super().options(), "mode": "upsert", "key": ", ".join(self.key), "deleted": "gone"}

    def expected(self, output: Output) -> Iterable[Held]:
        newest = {tuple(row[column] for column in self.key): row for row in output.rows()}
        return [held(row, self.columns) for row in newest.values() if not row["gone"]]


class SqliteTable(Target):
    """A table of a file, which all hosts write."""

    def options(self) -> Mapping[str, Any]:
        return {"url": self._url, "table": "chaos"}

    def rows(self) -> Iterator[Held]:
        names = ", ".join(f'"{column}"' for column in ("_partition", *COLUMNS))
        with sqlite3.connect(self._url.removeprefix("sqlite:")) as connection:
            for partition, *values in connection.execute(f"SELECT {names} FROM chaos"):
                row = dict(zip(COLUMNS, values, strict=True))
                yield held({**row, "_partition": partition, "gone": bool(row["gone"])})


class DeltaFolder(Target):
    """The output's own folder, read by delta-rs. Rows that a trim deletes leave the table, file by file."""

    is_table = True

    def __init__(self, folder: Path) -> None:
        super().__init__("delta")
        self._folder = folder

    def options(self) -> Mapping[str, Any]:
        return {"url": self._url, "interval": 2}

    def rows(self) -> Iterator[Held]:
        from tests.connectors.delta.readers import Place, delta_rs

        for row in delta_rs(Place(str(self._folder))).to_pylist():
            yield held(row, partition="partition")

    def expected(self, output: Output) -> Iterable[Held]:
        return map(held, output.kept())

    def allowed(self, output: Output) -> Iterable[Held]:
        return map(held, output.beside_kept())


class IcebergTable(Target):
    """A table of a catalog in PostgreSQL, read by pyiceberg. Rows that a trim deletes leave it, file by file."""

    is_table = True

    def __init__(self, postgres: str, folder: Path) -> None:
        super().__init__(f"iceberg:postgresql+psycopg:{postgres.partition(':')[2]}")
        self._warehouse = f"file://{folder}"

    def options(self) -> Mapping[str, Any]:
        return {"url": self._url, "table": "default.chaos", "warehouse": self._warehouse, "interval": 2}

    def rows(self) -> Iterator[Held]:
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog("actorproc", uri=self._url.removeprefix("iceberg:"), warehouse=self._warehouse)
        for row in catalog.load_table("default.chaos").scan().to_arrow().to_pylist():
            yield held(row, partition="partition")
        catalog.close()

    def expected(self, output: Output) -> Iterable[Held]:
        return map(held, output.kept())

    def allowed(self, output: Output) -> Iterable[Held]:
        return map(held, output.beside_kept())


class RedisStream(Target):
    """A stream of Redis: texts by column, without nulls."""

    def options(self) -> Mapping[str, Any]:
        return {"url": self._url, "stream": "chaos", "timeout": 5}

    def rows(self) -> Iterator[Held]:
        import redis

        with redis.Redis.from_url(self._url, decode_responses=True) as client:
            for _, texts in client.xrange("chaos"):
                values = {name: text if name in TEXTS else orjson.loads(text) for name, text in texts.items()}
                yield held({**values, "_partition": texts["_partition"]})


class KafkaTopic(Target):
    """A topic, read with `read_committed`. Partition and sequence are headers."""

    topic: ClassVar[str] = "rows"

    def __init__(self, brokers: str) -> None:
        super().__init__(f"kafka://{brokers}/{self.topic}")
        self._brokers = brokers

    def options(self) -> Mapping[str, Any]:
        return {"url": self._url, "headers": "_partition, _sequence", "timeout": 10}

    def rows(self) -> Iterator[Held]:
        from tests.chaos.topic import committed_messages

        for message in committed_messages(self._brokers, self.topic):
            headers: dict[str, Any] = dict(message.headers() or ())
            place = {"_partition": headers["_partition"].decode(), "_sequence": int(headers["_sequence"])}
            yield held({**orjson.loads(message.value() or b""), **place})


class Webhook(Target):
    """A server that keeps the first request of each `Idempotency-Key`."""

    def __init__(self, receiver: Any) -> None:
        super().__init__(receiver.url)
        self._receiver = receiver

    def options(self) -> Mapping[str, Any]:
        return {"url": self._url, "request_rows": 50, "timeout": 5}

    def rows(self) -> Iterator[Held]:
        return map(held, self._receiver.rows)

    def faults(self) -> list[str]:
        return [f"the key {key} came again with another body" for key in self._receiver.foreign[:3]]

    @property
    def note(self) -> str:
        arrived = len(self._receiver.arrived)
        return f"{arrived:,} requests, {self._receiver.repeats:,} of them repeats with their key"
