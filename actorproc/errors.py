"""All errors that actorproc raises on purpose, as one tree, grouped by the reader's next step.

ActorprocError
  UsageError               fix the call, the setting, the handler, the URL or the input line; it had no effect
    SettingsError          fix the setting: it is unknown, malformed or contradicts another one
    HandlerDefinitionError fix the handler class
    SchemaError            fix the output schema: it does not parse, or does not fit the stored one
    VersionRefused         update actorproc on the hosts that are named
  StoreError
    StoreUnavailable       try again later; a write that ended so may have been applied
    StoreRefused           fix the bucket, the credentials or the rights; trying again does not help
      CredentialsExpired   renew the credentials
      StoreAccessError     the same at the first access: a UsageError, too
    BufferFull             send again later: the producer's buffer had no room in time, so the record was not sent
    StoreUnsafe            use another store or version: this one breaks its conditional writes
    ConditionFailed        read the object again: it is not in the state that a conditional write expected
  CorruptObject            restore the object that is named
  SourceError              fix the source, or wait until it can be read again
    RecordsLost            begin anew, or restore the files: the next records were deleted, and later ones exist
    PartitionGone          nothing: the stream has no such partition any more
  Fenced                   stop: another host owns this partition, or this host name
    StaleEpoch             stop: the checkpoint has a later epoch than the lease
  RemovedFromGroup         stop the partitions and join again: the group took this host for dead
  EndNotReached            fix the cause that is named and run again; it resumes from the last commit
  QueryFailed              fix the cause that is named and run again; a Spark query resumes from its checkpoint
  Aborted                  run again: a second signal ended the drain, and uncommitted records are processed again; or
                           `stop` came before the block `async with Processor(...)` had begun
  HandlerError             fix the handler or the record: user code failed
    HandlerMisuse          fix the handler: it misuses the API; the partition stops, and no record becomes a dead letter
      RowsLost             fix the handler: it emitted rows after it had committed their records, or had returned
    RowMismatch            fix the handler or the schema: a row does not fit `output_schema`
    StateMismatch          fix the handler or the record: a key, a value or a time does not fit `ctx.state`
    DecodeError            fix the record or the setting `decode`: a value is not in the format that the setting names
    TooManyDeadLetters     look at the dead letters: the partition stopped, because too many records fail
    PartitionStuck         fix the handler: it made no progress for `max_process_time`
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, Self

Fault = Literal["user", "infrastructure"]
"""Where an error comes from: handler, options and schema, or source, store and network."""

RESTORE = "restore it from a backup, or from an earlier version in the bucket"


class ActorprocError(Exception):
    """Base class of all errors that actorproc raises on purpose."""

    fault: Fault = "infrastructure"


class UsageError(ActorprocError):
    """The call was wrong. The message names the wrong value and the allowed ones."""

    fault: Fault = "user"


class SettingsError(UsageError):
    """A setting is unknown, malformed, or contradicts another one."""


class HandlerDefinitionError(UsageError):
    """The handler class, or another object of the user's, cannot be used as it is defined."""


class SchemaError(UsageError):
    """An output schema does not parse, or does not fit the stored one."""


class VersionRefused(UsageError):
    """The hosts of a group run versions of actorproc that cannot read one another's documents."""


class StoreError(ActorprocError):
    """A request to the store failed."""

    fault: Fault = "infrastructure"


class StoreUnavailable(StoreError):
    """The store did not answer, is overloaded, or has no space left. A write that ended so may have been applied."""

    throttled = False
    """The store said that it gets too many requests."""


class BufferFull(StoreError):
    """The buffer of a producer had no room for a record within `max_block`. The record was not sent."""


class StoreRefused(StoreError):
    """The store refused the request for good: no such bucket, wrong credentials, or missing rights."""


class CredentialsExpired(StoreRefused):
    """The credentials were valid once and can be renewed."""


class StoreAccessError(StoreRefused, UsageError):
    """The store refused the first access: the URL or the credentials are wrong, or lack rights."""


class StoreUnsafe(StoreError):
    """The store lacks a property that safety rests on. The message names the property."""


class ConditionFailed(StoreError):
    """The condition of a conditional write did not hold.

    After a lost reply the caller's own earlier write may have made it false. `Store.create` and `Store.swap`
    settle that.
    """


@contextmanager
def first_contact() -> Iterator[None]:
    """Turn a StoreRefused of the first access to a store into StoreAccessError: starting again does not help."""
    try:
        yield
    except CredentialsExpired:
        raise
    except StoreRefused as error:
        raise StoreAccessError(str(error)) from error


class CorruptObject(ActorprocError):
    """An object is damaged, truncated, or was written by another program.

    Args:
        url: of the store. The code that finds the damage often knows only the key; `locate` adds the URL on the way up.
    """

    def __init__(self, key: str, why: str, url: str = "") -> None:
        super().__init__(key, why, url)
        self.key = key
        self.why = _one_line(why)
        self.url = url

    def __str__(self) -> str:
        return f"{self.url}/{self.key}: {self.why}" if self.url else f"{self.key}: {self.why}"

    @classmethod
    def unreadable(cls, key: str, error: Exception) -> Self:
        """For a file that its decoder refuses with `error`."""
        return cls(key, f"cannot be read ({_one_line(str(error))}); {RESTORE}")


def _one_line(text: str) -> str:
    """Libraries put line breaks and unprintable bytes of the input into their messages."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def locate(error: BaseException | None, url: str) -> None:
    """Add the store's URL to a CorruptObject that has none, also within exception groups."""
    if isinstance(error, CorruptObject):
        error.url = error.url or url
    elif isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            locate(one, url)


@contextmanager
def located(url: str) -> Iterator[None]:
    """Add this store URL to each CorruptObject that passes."""
    try:
        yield
    except BaseException as error:
        locate(error, url)
        raise


class SourceError(ActorprocError):
    """The source cannot be read, or breaks the rules of `Source`."""


class RecordsLost(SourceError):
    """The next records were trimmed or deleted before they were read. Trying again does not help."""


class PartitionGone(SourceError):
    """The stream has no such partition any more.

    If a partition that follows it is listed, it ends here, and its unread records are lost. Otherwise it waits until
    it is listed again.
    """


class Fenced(ActorprocError):
    """Another host owns the name or the leases of this host. This host stops; no data is lost."""


class StaleEpoch(Fenced):
    """The checkpoint has a later epoch than the lease: this host is late, or the group document lost its epochs."""

    def __init__(self, key: str, epoch: int, message: str) -> None:
        super().__init__(f"{key}: {message}")
        self.epoch = epoch


class RemovedFromGroup(ActorprocError):
    """The group took this host for dead and reassigned its leases. The host stops its partitions and joins again."""


class EndNotReached(ActorprocError):
    """A run until the end stopped before the end. The message names the partitions and the reason."""


class QueryFailed(ActorprocError):
    """A Spark query failed. When it is started again, it resumes from its checkpoint."""


class Aborted(ActorprocError):
    """A second signal arrived during the drain, or `stop` was called while a block `async with Processor` started."""


class HandlerError(ActorprocError):
    """User code failed. The original error is the cause."""

    fault: Fault = "user"


class HandlerMisuse(HandlerError):
    """The handler misuses the API; retrying cannot help. The partition stops, and no record becomes a dead letter."""


class RowsLost(HandlerMisuse):
    """The handler emitted rows too late: `ctx.commit` had committed their records, or `process` had returned.

    Rows for committed records are lost. Other records are processed again.
    """


class RowMismatch(HandlerError):
    """A row does not fit `output_schema`. The message names the column, the value and the allowed values."""

    def __init__(self, column: str, why: str) -> None:
        super().__init__(f"column {column!r}: {why}" if column else why)
        self.column = column


class StateMismatch(HandlerError, ValueError):
    """A key, a value or a time that came from a record does not fit `ctx.state` or `ctx.wake`. The record fails."""


class DecodeError(HandlerError, ValueError):
    """A value is not in the format that the setting `decode` names, or not as its schema says."""


class TooManyDeadLetters(HandlerError):
    """More than `dead_letter_limit` of the latest records failed. The partition stops, to spare the others."""


class PartitionStuck(HandlerError):
    """The handler made no progress for `max_process_time`, or, as `fault` says, the source."""

    def __init__(self, message: str, fault: Fault = "user") -> None:
        super().__init__(message)
        self.fault = fault


def fault_of(error: BaseException) -> Fault:
    """An error that is not ours comes from user code: errors of sources and stores are turned into ours."""
    return error.fault if isinstance(error, ActorprocError) else "user"
