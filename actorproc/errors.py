"""The error tree, by what the reader of the error has to do.

ActorprocError
  UsageError             fix the call, the setting, the handler, the URL or the line; nothing was done with that
    SettingsError        a setting is unknown, malformed or contradicts another
    HandlerDefinitionError   the handler class cannot be used as it is
    SchemaError          an output schema does not parse, or does not fit what is already stored
  StoreError
    StoreUnavailable     try again later; a write that ended so may or may not have been applied
    StoreRefused         fix the bucket, the credentials or the rights; trying again will not help
      CredentialsExpired renew them
      PlaceRefused       said no at the first contact: wrong use, as a UsageError is
    StoreUnsafe          use another store (or version): this one does not keep its conditions
    ConditionFailed      a conditional write found the object otherwise than it was told
  CorruptObject          look at the named object: it is not what was written there
  SourceError            the source could not be read
    Lost                 start anew, or restore the files: what was to be read next is not there any more, and later is
  Fenced                 stop: another owner runs this partition (or this host name)
    Outranked            its checkpoint bears a later epoch than our lease
  WrittenOut             stop the partitions, then join again: the group took this host for dead
  EndNotReached          mend what the message names, and run again: it goes on from what is committed
  QueryFailed            mend what the message names, and run again: a Spark query goes on from its checkpoint
  Aborted                a second signal came while draining; what was not committed is processed again
  HandlerError           the user's code failed, or a record of it did
    HandlerMisuse        fix the handler: it would fail whatever the record, so the partition stops and no record is blamed
      RowsLost           it committed records that it was not done with; what it emitted for them afterwards is lost
    Misfit               a row does not fit `output_schema`: fix the handler, or the schema
    TooManyDeadLetters   look at the dead letters: the partition stopped instead of draining into them
    PartitionStuck       the handler made no progress for `max_process_time`
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self


class ActorprocError(Exception):
    """Base of everything that actorproc raises on purpose."""


class UsageError(ActorprocError):
    """The call was wrong; the message names what, and what is allowed."""


class SettingsError(UsageError):
    """A setting is unknown, malformed, or contradicts another."""


class HandlerDefinitionError(UsageError):
    """The handler class cannot be used as it is."""


class SchemaError(UsageError):
    """An output schema does not parse, or does not fit what is already stored."""


class StoreError(ActorprocError):
    """Something between us and the store."""


class StoreUnavailable(StoreError):
    """The store did not answer, asked to be left alone, or has no space. A write that ended so may have been applied."""


class StoreRefused(StoreError):
    """The store said no for good: no such bucket, wrong credentials, no right."""


class CredentialsExpired(StoreRefused):
    """They were right once, and may be renewed."""


class PlaceRefused(StoreRefused, UsageError):
    """The store said no at the first contact: the URL or the credentials are wrong, or lack rights."""


class StoreUnsafe(StoreError):
    """The store does not keep a property on which safety rests; the message names it."""


class ConditionFailed(StoreError):
    """The condition of a conditional write did not hold when the store looked.

    After a lost reply it may be the caller's own write that made it false: `Store.create` and `Store.swap` settle that.
    """


RESTORE = "restore it from a backup, or from an earlier version in the bucket"


@contextmanager
def first_contact() -> Iterator[None]:
    """While inside, a store that refuses was never right: wrong use, which starting again does not mend."""
    try:
        yield
    except CredentialsExpired:
        raise
    except StoreRefused as error:
        raise PlaceRefused(str(error)) from error


class CorruptObject(ActorprocError):
    """An object is not what was written there (torn, truncated, or somebody else's).

    Args:
        url: of the store in which it is. Who finds the damage knows the key only; `locate` says it on the way up.
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
        """A file that the library which decodes it refuses."""
        return cls(key, f"cannot be read ({_one_line(str(error))}); {RESTORE}")


def _one_line(text: str) -> str:
    """Libraries put line breaks, and bytes of what they read, into their messages."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def locate(error: BaseException | None, url: str) -> None:
    """Say of what is damaged that it is in the store at `url`, unless it is known to be in another."""
    if isinstance(error, CorruptObject):
        error.url = error.url or url
    elif isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            locate(one, url)


@contextmanager
def located(url: str) -> Iterator[None]:
    """While inside, what is read is in the store at `url`."""
    try:
        yield
    except BaseException as error:
        locate(error, url)
        raise


class SourceError(ActorprocError):
    """The source could not be read."""


class Lost(SourceError):
    """What a reader reads next was trimmed, or deleted: trying again will not help."""


class Fenced(ActorprocError):
    """Somebody else owns what this worker thought it owned. It stops; nothing is lost."""


class WrittenOut(ActorprocError):
    """The group took this host for dead and gave its leases away. It stops its partitions and joins again."""


class EndNotReached(ActorprocError):
    """A run until the end has ended before; the message names the partitions and why."""


class QueryFailed(ActorprocError):
    """A Spark query failed; started again it goes on from its checkpoint."""


class Aborted(ActorprocError):
    """A second signal came while draining."""


class StaleEpoch(Fenced):
    """The checkpoint bears a later epoch than our lease: we are late, or the group has forgotten its epochs."""

    def __init__(self, key: str, epoch: int, message: str) -> None:
        super().__init__(f"{key}: {message}")
        self.epoch = epoch


class HandlerError(ActorprocError):
    """The user's code failed; the cause is chained."""


class HandlerMisuse(HandlerError):
    """The handler uses what it is given as it cannot be used. The partition stops: no record is to blame, none is given up."""


class RowsLost(HandlerMisuse):
    """`ctx.commit` took records as done for which rows were emitted afterwards. These rows are lost."""


class Misfit(HandlerError):
    """A row does not fit `output_schema`; the message names the column, the value and what is allowed."""

    def __init__(self, column: str, why: str) -> None:
        super().__init__(f"column {column!r}: {why}" if column else why)
        self.column = column


class TooManyDeadLetters(HandlerError):
    """More than `dead_letter_limit` of the latest records failed: the partition stops instead of draining into dead letters."""


class PartitionStuck(HandlerError):
    """The handler made no progress for `max_process_time`."""
