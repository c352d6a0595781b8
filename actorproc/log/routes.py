"""Chooses the partitions of a producer's records, also when the log has grown meanwhile."""

from __future__ import annotations

from collections.abc import Collection
from random import Random
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from actorproc.errors import CorruptObject
from actorproc.log.generations import Generations
from actorproc.log.metadata import LogMetadata, open_log
from actorproc.log.partitioner import Partitioner, Router, Unkeyed, partitions_of_keys
from actorproc.storage.names import LOG_META
from actorproc.storage.store import Store


class Share(NamedTuple):
    """Records that move to a partition: their row numbers, in order."""

    number: int
    rows: npt.NDArray[np.int64]


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
