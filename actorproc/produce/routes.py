"""Chooses the partitions of a producer's records, also when the log has grown meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random
from typing import Literal, NamedTuple

import anyio
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from actorproc.errors import CorruptObject, UsageError
from actorproc.log.generations import Generations
from actorproc.log.key_hash import partition_of_key, partitions_of_keys
from actorproc.log.metadata import LogMetadata, open_log
from actorproc.storage.names import LOG_META
from actorproc.storage.store import Store

Partitioner = Callable[[bytes | None, bytes | None, int], int]
"""(key, value, number of partitions) -> index of the partition, from 0."""

Unkeyed = Literal["sticky", "round-robin"]


class Share(NamedTuple):
    """Records that move to a partition: their row numbers, in order."""

    number: int
    rows: npt.NDArray[np.int64]


class Router:
    """Chooses partitions for one producer.

    Args:
        partitions: partition count.
        partitioner: for records without a key, 'sticky' or 'round-robin'; or a callable that decides for all.
        first: number of the first partition.
    """

    def __init__(self, partitions: int, partitioner: Unkeyed | Partitioner, random: Random, first: int = 0) -> None:
        self._count = partitions
        self._first = first
        self._partitioner = partitioner
        self._random = random
        self._turn = 0
        self._sticky = 0
        self._sticky_over: anyio.Event | None = None

    def stick(self, number: int, until: anyio.Event) -> None:
        """Send records without a key to partition `number` until the event is set."""
        self._sticky, self._sticky_over = number, until

    def choose(self, key: bytes | None, value: bytes | None) -> int:
        """Number of the partition for a record. Raises UsageError if a callable returns an invalid index."""
        if callable(self._partitioner):
            index = self._partitioner(key, value, self._count)
            # str() of True or an enum member is not the name of a partition.
            return self.number(int(index) if isinstance(index, int) else index, "the partitioner returned {}")
        if key is not None:
            return self._first + partition_of_key(key, self._count)
        if self._partitioner == "round-robin":
            self._turn = (self._turn + 1) % self._count
            return self._first + self._turn
        if self._sticky_over is None or self._sticky_over.is_set():
            return self._first + self._random.randrange(self._count)
        return self._sticky

    def choose_many(self, data: pa.RecordBatch) -> npt.NDArray[np.uint32]:
        """`choose` for each record."""
        keys = data.column("key")
        if callable(self._partitioner):
            pairs = zip(keys.to_pylist(), data.column("value").to_pylist(), strict=True)
            return np.array([self.choose(key, value) for key, value in pairs], np.uint32)
        if keys.null_count == 0:
            return self._numbers(partitions_of_keys(keys, self._count))
        chosen = np.empty(len(keys), np.uint32)
        unkeyed = keys.is_null().to_numpy(zero_copy_only=False)
        chosen[~unkeyed] = self._numbers(partitions_of_keys(keys.drop_null(), self._count))
        if self._partitioner == "round-robin":
            turns = self._turn + 1 + np.arange(keys.null_count)
            chosen[unkeyed] = self._first + turns % self._count
            self._turn = int(turns[-1]) % self._count
        else:
            chosen[unkeyed] = self.choose(None, None)
        return chosen

    def number(self, index: object, what: str = "partition = {}") -> int:
        """Number of the partition with this index. Raises UsageError, which names `what`, if it is not valid."""
        if type(index) is int and 0 <= index < self._count:
            return self._first + index
        raise UsageError(f"{what.format(repr(index))}: expected an int from 0 to {self._count - 1}")

    def _numbers(self, indices: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        return indices + np.uint32(self._first) if self._first else indices


class Routes:
    """The partitions of a log, as one producer knows them. Call `adopt` first.

    Args:
        partitioner, random: of the producer, see `Router`.
    """

    def __init__(self, store: Store, partitioner: Unkeyed | Partitioner, random: Random) -> None:
        self._store = store
        self._partitioner = partitioner
        self._random = random
        self.adopt(LogMetadata(partitions=0))

    def adopt(self, metadata: LogMetadata) -> None:
        """Go by this `log.json` from now on."""
        self.generations = found = metadata.generations
        self.router = Router(found.count, self._partitioner, self._random, found.first)
        """Chooses among the partitions of the newest generation."""
        self._growing = metadata.growing

    async def renew(self, ended: int) -> None:
        """Read `log.json` anew, because partition `ended` has ended.

        Raises:
            CorruptObject: no partition follows it.
        """
        if not self.generations.children(ended):
            found = await open_log(self._store)
            if found.generations.total > self.generations.total:  # another batch may have read a later one
                self.adopt(found)
        if not self.generations.children(ended):
            raise CorruptObject(LOG_META, f"names no partition that follows {ended}, and {ended} has ended")

    def unsealed_parent(self, number: int) -> int | None:
        """The partition before this one, if it may not have ended."""
        return self.generations.parent(number) if self._growing else None

    def shares(self, number: int, records: pa.Table, placed: Collection[int]) -> list[Share]:
        """How the records of a partition that has ended go to the partitions that follow it.

        Args:
            placed: rows whose partition the user has named. They stay with its index.
        """
        if not callable(self._partitioner):
            return moved(self.generations, number, records.column("key").combine_chunks(), placed)
        children = self.generations.children(number)
        pairs = zip(records.column("key").to_pylist(), records.column("value").to_pylist(), strict=True)
        chosen = [children[0] if row in placed else self.router.choose(*pair) for row, pair in enumerate(pairs)]
        return _grouped([number if number in children else children[0] for number in chosen])


def moved(generations: Generations, number: int, keys: pa.BinaryArray, placed: Collection[int] = ()) -> list[Share]:
    """The shares of the partitions that follow partition `number`, for records with these keys.

    A key goes where its hash says. Records whose key is null, and those that are `placed`, go to the partition with the
    same index; so does a key whose hash names another partition, since its producers do not go by the hash.
    """
    place, children = generations.place(number), generations.children(number)
    first, count = children[0] - place.index, len(children) * place.count
    index = np.full(len(keys), place.index, np.uint32)
    hashed = partitions_of_keys(keys.fill_null(b""), count)
    by_hash = keys.is_valid().to_numpy(zero_copy_only=False) & (hashed % np.uint32(place.count) == place.index)
    by_hash[list(placed)] = False
    index[by_hash] = hashed[by_hash]
    return _grouped(index + np.uint32(first))


def _grouped(numbers: npt.ArrayLike) -> list[Share]:
    chosen = np.asarray(numbers)
    return [Share(int(number), np.flatnonzero(chosen == number)) for number in np.unique(chosen)]
