"""What users subclass: `PartitionHandler`, the delegate that a partition actor calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from enum import Enum
from typing import Any, ClassVar

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from actorproc.handler.context import PartitionContext, PartitionInfo
from actorproc.records import Batch


class Decision(Enum):
    """What `on_error` may say of a failed attempt."""

    RETRY = "retry"
    """Try again, for ever, with back-off: the cause lies outside (a database is down)."""
    DEAD_LETTER = "dead-letter"
    """Do not try again: find the bad records and dead-letter them."""
    SKIP = "skip"
    """Do not try again: find the bad records and pass over them. They leave no trace but a count and a log line."""
    STOP = "stop"
    """Stop the partition; it is started again with back-off, from its checkpoint."""


class CloseReason(Enum):
    """Why a partition ends on this host."""

    STOPPING = "stopping"
    """The host stops; everything processed is committed (with `auto_commit` off: what the handler has committed)."""
    HANDOFF = "handoff"
    """The lease moves to another host; likewise."""
    LOST = "lost"
    """It was cut off: another host has the lease, or will. What was not committed is processed again there."""
    FAILED = "failed"
    """An error; the partition is started again here."""


class NoOptions(BaseModel):
    """A handler without options."""

    model_config = ConfigDict(extra="forbid")


class PartitionHandler:
    """Processes the batches of one partition. One instance per partition: its attributes need no locks.

    Subclass it and write `process`, `async def` or plain `def` (which then runs in a worker thread).
    """

    output_schema: ClassVar[str | pa.Schema | None] = None
    """Columns of the emitted rows: Spark DDL such as `"carrier string, minutes double"`, or a pyarrow schema.
    None: this handler emits nothing."""

    Options: ClassVar[type[BaseModel]] = NoOptions
    """A pydantic model: `--option name=value`, `ACTORPROC_OPTION_<NAME>` and `[options]` of the file fill it."""

    _arguments: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "process": ("batch", "ctx"),
        "opened": ("ctx",),
        "closing": ("ctx", "reason"),
        "on_error": ("error", "failed", "attempt"),
    }
    """What the methods that a subclass may write are called with."""

    _quick = False
    """Of handlers that come with actorproc: the next call of a plain `process` only computes, and not for long."""

    @classmethod
    def schema_for(cls, options: Any) -> str | pa.Schema | None:
        """The output schema, where it depends on the options. Asked once, before anything is opened."""
        return cls.output_schema

    def process(self, batch: Batch, ctx: PartitionContext) -> Awaitable[None] | None:
        """Work on a batch: emit rows, dead-letter records, call other systems.

        What it raises fails the attempt: rows emitted in it are dropped, the batch is tried again, and after
        `max_attempts` the records that fail alone are found and dead-lettered.
        """
        raise NotImplementedError

    async def opened(self, ctx: PartitionInfo) -> None:
        """The partition starts on this host. Called once, before any batch."""

    async def closing(self, ctx: PartitionInfo, reason: CloseReason) -> None:
        """The partition ends on this host. Called once after `opened` has returned, whatever the reason.

        A plain `process` that was given up has ended before; if it does not within ten seconds, this is not called.
        """

    def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision | None:
        """Choose what happens after an attempt has failed. None: the default (retry, then dead-letter).

        Args:
            error: what `process` raised, or the failure of a single record.
            failed: the records of the attempt.
            attempt: its number, from 1.
        """
        return None

    @classmethod
    @asynccontextmanager
    async def shared(cls, options: Any) -> AsyncIterator[Any]:
        """What the partitions of a host share (a connection pool, a client): entered once per host, given as `ctx.shared`."""
        yield None
