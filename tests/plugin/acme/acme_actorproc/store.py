"""Objects in an SQLite database: `acmedb:///var/state.db`. Transactions make writes conditional."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Self, TypeVar

import anyio
import anyio.to_thread
from pydantic import BaseModel, ConfigDict, Field

from actorproc.errors import ConditionFailed, StoreRefused, StoreUnavailable
from actorproc.spi import Backend, Clock, Entry, Listing, NotModified, Settings, Stored

T = TypeVar("T")

_TABLES = """
CREATE TABLE IF NOT EXISTS objects (key TEXT PRIMARY KEY, body BLOB, tag INTEGER, modified REAL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tags (newest INTEGER);
CREATE TABLE IF NOT EXISTS token (text TEXT);
INSERT INTO tags SELECT 0 WHERE NOT EXISTS (SELECT * FROM tags);
"""
_NOW = "(julianday('now') - 2440587.5) * 86400"


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")

    acmedb_busy_timeout: float = Field(5.0, gt=0)
    acmedb_token: str = Field("", repr=False)


class AcmeStore(Backend):
    options = Options

    def __init__(self, path: Path, options: Options) -> None:
        self.url = f"acmedb://{path}"
        self._path, self._options = path, options
        self._turn = anyio.Lock()  # waits without a limit here; `busy_timeout` is for other processes

    @classmethod
    def of_url(cls, url: str, options: Options, *, settings: Settings, clock: Clock) -> Self:
        return cls(Path(url.removeprefix("acmedb://")).absolute(), options)

    @property
    def route(self) -> None:
        return None  # a file of this machine, as are all hosts

    async def open(self) -> None:
        await self._run(self._create, mode="rwc")

    async def get(self, key: str, *, unless: str | None = None, tail: int | None = None) -> Stored | None:
        row = await self._run(_row, key)
        if row is not None and row[1] == unless:
            raise NotModified
        return None if row is None else Stored(row[0] if tail is None else row[0][-tail:], row[1], len(row[0]))

    async def put(self, key: str, body: bytes) -> str:
        return await self._run(_write, key, body)

    async def put_if_absent(self, key: str, body: bytes) -> str:
        def work(database: sqlite3.Connection) -> str:
            if _row(database, key) is not None:
                raise ConditionFailed(f"{self.url}: {key!r} exists")
            return _write(database, key, body)

        return await self._run(work)

    async def put_if_match(self, key: str, body: bytes, tag: str) -> str:
        def work(database: sqlite3.Connection) -> str:
            found = _row(database, key)
            if found is None or found[1] != tag:
                raise ConditionFailed(f"{self.url}: {key!r} is not {tag}")
            return _write(database, key, body)

        return await self._run(work)

    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        def work(database: sqlite3.Connection) -> Listing:
            rows = database.execute(
                "SELECT key, tag, length(body), modified FROM objects "
                "WHERE key >= ? AND key > ? AND substr(key, 1, ?) = ? ORDER BY key LIMIT ?",
                (prefix, after, len(prefix), prefix, -1 if limit is None else limit),
            )
            entries = [Entry(key, str(tag), size, modified) for key, tag, size, modified in rows]
            return Listing(entries, database.execute(f"SELECT {_NOW}").fetchone()[0])

        return await self._run(work)

    async def delete(self, key: str) -> None:
        await self._run(lambda database: database.execute("DELETE FROM objects WHERE key = ?", (key,)).rowcount)

    async def _run(self, work: Callable[..., T], *args: object, mode: str = "rw") -> T:
        async with self._turn:
            return await anyio.to_thread.run_sync(self._transact, work, args, mode)

    def _transact(self, work: Callable[..., T], args: tuple[object, ...], mode: str) -> T:
        try:
            where, wait = f"{self._path.as_uri()}?mode={mode}", self._options.acmedb_busy_timeout
            with closing(sqlite3.connect(where, uri=True, timeout=wait, isolation_level=None)) as database:
                database.execute("BEGIN IMMEDIATE")
                answer = work(database, *args)
                database.execute("COMMIT")  # closed without it, SQLite rolls back
                return answer
        except sqlite3.Error as error:
            raise StoreUnavailable(f"{self.url}: {error}") from error

    def _create(self, database: sqlite3.Connection) -> None:
        for statement in filter(str.strip, _TABLES.split(";")):
            database.execute(statement)
        given = self._options.acmedb_token
        database.execute("INSERT INTO token SELECT ? WHERE NOT EXISTS (SELECT * FROM token)", (given,))
        if database.execute("SELECT text FROM token").fetchone()[0] != given:
            raise StoreRefused(f"{self.url}: another token is needed; set acmedb_token")


def _row(database: sqlite3.Connection, key: str) -> tuple[bytes, str] | None:
    row = database.execute("SELECT body, tag FROM objects WHERE key = ?", (key,)).fetchone()
    return None if row is None else (row[0], str(row[1]))


def _write(database: sqlite3.Connection, key: str, body: bytes) -> str:
    [tag] = database.execute("UPDATE tags SET newest = newest + 1 RETURNING newest").fetchall()[0]
    database.execute(f"INSERT OR REPLACE INTO objects VALUES (?, ?, ?, {_NOW})", (key, body, tag))
    return str(tag)
