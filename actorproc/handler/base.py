"""`PartitionHandler`, the base class of the users' handlers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from enum import Enum
from typing import Any, ClassVar

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from actorproc.handler.context import PartitionContext
from actorproc.handler.info import PartitionInfo
from actorproc.handler.keyed_state import Key
from actorproc.handler.returned_rows import Returned
from actorproc.handler.wake_context import WakeContext
from actorproc.records import Batch


class Decision(Enum):
    """The next step after a failed attempt, as `on_error` decides."""

    RETRY = "retry"
    """Try again for ever, with back-off: the cause is outside, for example a database that is down."""
    DEAD_LETTER = "dead-letter"
    """Do not try again: find the bad records and dead-letter them."""
    SKIP = "skip"
    """Do not try again: find the bad records and skip them. They leave only a count and a log line."""
    STOP = "stop"
    """Stop the partition. It is started again from its checkpoint, with back-off."""


class CloseReason(Enum):
    """Why a partition ends on this host."""

    STOPPING = "stopping"
    """The host stops. Everything processed is committed. With `auto_commit` off: only the handler's own commits."""
    HANDOFF = "handoff"
    """The lease moves to another host. Likewise."""
    ENDED = "ended"
    """The partition was split or merged, and its last record is processed. Likewise."""
    LOST = "lost"
    """Another host has the lease, or will have it. Uncommitted records are processed again there."""
    FAILED = "failed"
    """An error. The partition is started again here."""


class NoOptions(BaseModel):
    """A handler without options."""

    model_config = ConfigDict(extra="forbid")


class PartitionHandler:
    """Processes the batches of one partition. One instance per partition: its attributes need no locks.

    Subclass it and write `process`, `async def` or plain `def` (which then runs in a worker thread).
    """

    output_schema: ClassVar[str | pa.Schema | type | None] = None
    """Columns of the rows: Spark DDL such as `"carrier string, minutes double"`; a pyarrow schema; a class with fields,
    such as a dataclass; or `"registry:SUBJECT"` of the schema registry. None: no rows."""

    Options: ClassVar[type[BaseModel]] = NoOptions
    """A pydantic model: `--option name=value`, `ACTORPROC_OPTION_<NAME>` and `[options]` of the file fill it."""

    State: ClassVar[Any] = None
    """Type of the values in `ctx.state`: a `msgspec.Struct` or any type that msgspec decodes. A dict by name declares
    several states: `{"": Total, "sessions": Session}`. None: any values."""

    state_ttl: ClassVar[Any] = None
    """Time to live of the keys in `ctx.state`: seconds, or text such as "30m". A dict by name for several states."""

    exclusive: bool = False
    """Whether no earlier owner of the partition can commit once this one has started.

    After `opened` and before the first batch an empty file is committed, which refuses the commits of earlier owners.
    A handler that keeps its position in another system, in one transaction with its effects there, needs it:
    `opened` fences the earlier owners in that system, and the empty file fences them here. It needs
    at-least-once delivery.
    """

    _arguments: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "process": ("batch", "ctx"),
        "opened": ("ctx",),
        "closing": ("ctx", "reason"),
        "committed": ("ctx", "upto", "rows", "error"),
        "on_error": ("error", "failed", "attempt"),
        "on_wake": ("key", "ctx"),
        "record_key": ("key", "ctx"),
    }
    """Arguments of the methods that a subclass may write."""

    _quick = False
    """The next call of a plain `process` only computes, and not for long. For handlers that come with actorproc."""

    @classmethod
    def schema_for(cls, options: Any) -> str | pa.Schema | type | None:
        """The output schema, if it depends on the options. Called once, before anything is opened."""
        return cls.output_schema

    def process(self, batch: Batch, ctx: PartitionContext) -> Awaitable[None] | None:
        """Work on a batch: emit rows, dead-letter records, call other systems.

        An exception fails the attempt: its rows are dropped, and the batch is tried again. After `max_attempts` the
        records that fail alone are found and dead-lettered.
        """
        raise NotImplementedError

    def on_wake(self, key: Key, ctx: WakeContext) -> Returned | Awaitable[Returned]:
        """The timer of `key`, which `ctx.wake` has set, is due. Plain `def` or `async def`. Called between batches.

        Return a row, several rows, or None. A row gets the `_sequence` of the latest record that was processed.

        If it raises, nothing of it counts: it is called again after a back-off, while everything else goes on, until it
        returns.
        """
        raise NotImplementedError

    def record_key(self, key: Key, ctx: PartitionInfo) -> bytes | str | None:
        """The key of the records to which a key of state, or of a timer, belongs. None: to those of several keys.

        Asked when the source splits or merges partitions by key: state and timers then go to the partition that gets
        the records. State of several keys goes to each partition, and its timers fire before the split. Called
        in any thread, also before `opened`.
        """
        return None

    async def opened(self, ctx: PartitionInfo) -> None:
        """The partition starts on this host. Called once, before any batch."""

    async def committed(self, ctx: PartitionInfo, upto: int, rows: int, error: Exception | None) -> None:
        """A commit has ended. Called after each, before the partition goes on. An error that it raises is only logged.

        Args:
            upto: sequence of the last record that is committed.
            rows: output rows of this commit.
            error: why it failed. It may have been applied all the same, unless another host has the partition (Fenced);
                the next owner finds out. None: it is durable.
        """

    async def closing(self, ctx: PartitionInfo, reason: CloseReason) -> None:
        """The partition ends on this host. Called once, if `opened` has returned.

        For the reasons STOPPING, HANDOFF and ENDED the partition still belongs to this host: with `auto_commit` off,
        `await ctx.commit()` commits the processed records.

        A plain `process` that was cut off has ended before. If it does not end within ten seconds, this is not called.
        """

    def on_error(self, error: Exception, failed: Batch, attempt: int) -> Decision | None:
        """Decide the next step after a failed attempt. None: the default (retry, then dead-letter).

        Args:
            error: the exception of `process`, or the failure of a single record.
            failed: the records of the attempt.
            attempt: its number, from 1.
        """
        return None

    @classmethod
    @asynccontextmanager
    async def shared(cls, options: Any) -> AsyncIterator[Any]:
        """Yields `ctx.shared`, such as a connection pool, for all partitions of a host. Entered once per host."""
        yield None
