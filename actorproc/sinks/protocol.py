"""The contract of a sink: another system that keeps the committed rows of a processor, and how far it has them.

Protocol: docs/protocol.md. Models: tests/protocol/sink_model.py, sink_keyed_model.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Literal, Self

import msgspec
import pyarrow as pa

from actorproc.errors import ActorprocError
from actorproc.runtime.clock import Clock
from actorproc.sinks.options import SinkOptions


class Guarantee(StrEnum):
    """How often a committed row arrives."""

    EXACTLY_ONCE = "exactly once"
    """Rows and position are one transaction of the sink."""
    IDEMPOTENT = "idempotent"
    """A row may be sent again, and the sink, or its key, makes that harmless."""
    AT_LEAST_ONCE = "at least once"


Ability = Literal["upsert", "replace", "keep"]
"""`mode = upsert`, `on_reset = replace`, `on_refused = keep`."""


class SinkRow(msgspec.Struct, frozen=True):
    """What a sink keeps for each partition, in the transaction of the rows."""

    home: str
    """Container and processor: another one of the same name is not taken for this one. "": there was only a pause."""
    life: int
    """Counts the registrations of the sink. A row of an earlier one says nothing about this one."""
    term: str
    """Of the registration, or of the latest redelivery that has begun. Random, since a restored container counts to
    the same numbers again."""
    fence: int
    """Counts the pauses."""
    position: int
    """Number of the next commit."""
    put_id: str = ""
    """Of the commit before `position`: it shows a container that was restored from a backup."""


@dataclass(frozen=True, slots=True)
class SinkPlace:
    """Where a sink belongs: its name, its processor, and the clock of the host."""

    name: str
    processor: str
    clock: Clock


@dataclass(frozen=True, slots=True)
class Delivery:
    """The rows of some commits of one partition, and the sink's row before and after."""

    partition: str
    rows: pa.Table
    """With `_sequence`, in order."""
    since: int
    """Number of the first commit."""
    counts: Sequence[int]
    """Rows of each commit, from `since` on."""
    was: SinkRow | None
    """The sink's row as it was read, or as the last delivery left it; None: there was none."""
    now: SinkRow
    put_ids: Sequence[str] = ()
    """Of each commit, for sinks whose requests name one; "": not known."""
    begins: bool = False
    """The first delivery of a term: refused rows of these commits and of later ones, which the sink has kept from
    before, are deleted first (rule `retry`)."""
    replace_after: int | None = None
    """With `on_reset = replace`: rows of this home and partition with a greater `_sequence`, also refused ones, are
    deleted first (rules `order`, `clear`, `mine`)."""
    depth: int = 0
    """Of the partition: one more than that of its deepest parent."""
    registration: str = ""
    """Names this registration of the sink for ever: a keyed sink counts the ones that have delivered (rule `lives`)."""


class SinkMoved(Exception):
    """The sink's row is not the one that the delivery expects: another owner has delivered, or it was fenced."""


class SinkError(ActorprocError):
    """A sink cannot take rows now. The delivery is tried again; a commit of the sink may have been applied.

    Args:
        again_in: seconds that the sink asks to wait.
    """

    made_progress = False
    """The target has acknowledged a part of the delivery, which is not sent again: the back-off begins anew."""

    def __init__(self, message: str, *, again_in: float = 0.0) -> None:
        super().__init__(message)
        self.again_in = again_in


class SinkRefused(SinkError):
    """The sink refuses rows, and would refuse them again: a value does not fit, or a right is missing."""


class SinkTarget(ABC):
    """Base of `Sink`, and of `tables.protocol.TableSink`."""

    guarantee: ClassVar[Guarantee]
    ordered: ClassVar[bool] = False
    """Its rows are read in the order in which they come, as those of a topic: a partition that follows others is
    delivered after these, and delivered again if one of these is."""
    url: str
    """Of the target, without credentials: it names the target in messages."""

    @property
    def registered_as(self) -> str:
        """Names the target in the registration: under the same name another one is refused."""
        return self.url

    @property
    def fixed(self) -> str:
        """What else must stay as it was registered, for messages, such as `mode = upsert, key = id`."""
        return ""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Sink(SinkTarget):
    """One connection of a host to a sink. Deliveries of different partitions may run at once.

    Every method but `close` may raise `SinkError`, and whatever the sink's client raises counts as one. A sink is
    registered under the scheme of its URL, as a class or function of (url, options, place); `options` has the values
    that the user gave, by name: `parse_options` reads them.
    """

    forgets: ClassVar[bool] = False
    """It may lose its row of a partition, and keep the rows. Then the noted progress counts."""
    can: ClassVar[frozenset[Ability]] = frozenset()
    """What it can do beyond adding rows. What `options` ask for, and it cannot, is refused at the start."""
    fixed_options: ClassVar[tuple[str, ...]] = ("mode", "key")
    """Options that must stay as they were registered, and that all hosts have alike."""
    options: SinkOptions

    @property
    def fixed(self) -> str:
        """See `SinkTarget.fixed`."""
        given = {name: getattr(self.options, name) for name in self.fixed_options}
        texts = {name: ", ".join(value) if isinstance(value, tuple) else value for name, value in given.items()}
        return ", ".join(f"{name} = {text}" for name, text in texts.items() if text)

    @abstractmethod
    async def open(self, schema: pa.Schema) -> None:
        """Connect, and prepare the target: create or check it, and add the columns that it lacks.

        Args:
            schema: of the rows that the sink gets: its columns, and `_sequence`.

        Raises:
            SinkRefused: the target cannot take rows of this schema.
        """

    async def check(self, schema: pa.Schema) -> None:
        """Try all that `open` and a delivery need, and leave no rows: `actorproc doctor` calls it on a sink that is not
        open. By default it is opened, and read.

        Raises:
            SinkRefused: the target cannot take rows of this schema, or a right is missing.
        """
        await self.open(schema)
        await self.read("")

    @abstractmethod
    async def read(self, partition: str) -> SinkRow | None:
        """The sink's row of a partition; None if it has none."""

    @abstractmethod
    async def write(self, delivery: Delivery) -> None:
        """In one transaction: if the sink's row is `delivery.was`, add the rows and set it to `delivery.now`.

        The whole row is compared, and nothing of the transaction lands where it differs. A delivery without rows moves
        the row alone. Where the outcome is unknown, raise any other error.

        With `mode = upsert` each key gets its newest row: the version of a row is (lives, `depth`, commit number), and
        a row of an equal or later version replaces the one that is there. The sink counts the lives, which are the
        different values of `registration`. Of several rows of a commit with one key the last counts. A deletion keeps
        its version. See `keyed_rows.py`.

        Raises:
            SinkMoved: the sink's row is another one.
            SinkRefused: rows do not fit.
        """
