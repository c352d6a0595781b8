r"""A handler that moves money between the accounts of a database, each transfer once, whatever crashes.

    actorproc serve examples.transfers:Transfers --source transfers --container state --option database=bank.db

A sink cannot do this: whether a transfer is possible depends on what the database has. The handler follows the five
steps of docs/effects.md. SQLite stands for any database with transactions.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

import msgspec
from pydantic import BaseModel

from actorproc import Batch, Decision, PartitionContext, PartitionHandler
from actorproc.handler.info import PartitionInfo

TABLES = """
CREATE TABLE IF NOT EXISTS accounts (name TEXT PRIMARY KEY, cents INTEGER NOT NULL CHECK (cents >= 0));
CREATE TABLE IF NOT EXISTS owners (part TEXT PRIMARY KEY, epoch INTEGER NOT NULL, reset TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS done (part TEXT, sequence INTEGER, accepted INTEGER, PRIMARY KEY (part, sequence));
"""


class Transfer(msgspec.Struct):
    source: str
    target: str
    cents: int


class Bank(BaseModel):
    database: str


class NotOwner(Exception):
    """A later owner of the partition has begun."""


class Transfers(PartitionHandler):
    output_schema = "source string, target string, cents bigint, accepted boolean"
    Options = Bank
    exclusive = True  # step 1: no earlier owner commits after `opened`

    async def opened(self, ctx: PartitionInfo) -> None:
        self._part = f"{ctx.processor_id}/{ctx.partition}"
        with self._transaction(ctx) as database:  # step 2: fence earlier owners
            found = database.execute("SELECT epoch, reset FROM owners WHERE part = ?", (self._part,)).fetchone()
            epoch, seen = found or (-1, "")
            if epoch > ctx.epoch:
                raise NotOwner(self._part)
            resets = list(ctx.resets)
            unseen = resets[resets.index(seen) + 1 :] if seen in ctx.resets else resets
            for reset in unseen:  # step 4: after a reset records come again, and shall be done again
                upto = ctx.resets[reset]
                database.execute("DELETE FROM done WHERE part = ? AND sequence <= ?", (self._part, upto))
            latest = resets[-1] if resets else seen
            database.execute("REPLACE INTO owners VALUES (?, ?, ?)", (self._part, ctx.epoch, latest))

    def process(self, batch: Batch, ctx: PartitionContext) -> None:
        with self._transaction(ctx) as database:  # step 3: effects and position in one transaction
            owner = database.execute("SELECT epoch FROM owners WHERE part = ?", (self._part,)).fetchone()
            if owner != (ctx.epoch,):
                raise NotOwner(self._part)
            known = "SELECT sequence, accepted FROM done WHERE part = ? AND sequence > ?"
            done = dict(database.execute(known, (self._part, ctx.committed)).fetchall())
            database.execute("DELETE FROM done WHERE part = ? AND sequence <= ?", (self._part, ctx.committed))
            for record, transfer in ctx.decode(batch, Transfer):
                accepted = done.get(record.sequence)
                if accepted is None:
                    accepted = moved(database, transfer)
                    database.execute("INSERT INTO done VALUES (?, ?, ?)", (self._part, record.sequence, accepted))
                ctx.emit(record, (transfer.source, transfer.target, transfer.cents, bool(accepted)))

    def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision | None:
        # Step 5: whether the transaction was committed is found out by `opened`.
        return Decision.STOP if isinstance(error, NotOwner | sqlite3.Error) else None

    @contextmanager
    def _transaction(self, ctx: PartitionInfo) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(ctx.options.database, timeout=60, isolation_level=None)) as database:
            database.executescript(TABLES)
            database.execute("BEGIN IMMEDIATE")
            with database:  # commits, or rolls back
                yield database


def moved(database: sqlite3.Connection, transfer: Transfer) -> bool:
    """Move the money, if the source has enough and the target exists."""
    target = database.execute("SELECT 1 FROM accounts WHERE name = ?", (transfer.target,)).fetchone()
    if transfer.cents <= 0 or target is None:
        return False
    take = "UPDATE accounts SET cents = cents - ? WHERE name = ? AND cents >= ?"
    taken = database.execute(take, (transfer.cents, transfer.source, transfer.cents))
    if taken.rowcount:
        give = "UPDATE accounts SET cents = cents + ? WHERE name = ?"
        database.execute(give, (transfer.cents, transfer.target))
    return bool(taken.rowcount)
