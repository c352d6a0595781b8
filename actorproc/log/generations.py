"""The partitions of a log that has grown: their numbers, and which partition follows which.

Each growth makes a new generation of partitions, whose count is a multiple of the count before. Numbers go on: a log of
8 partitions that grows to 16 has the partitions 0 to 7, which end, and 8 to 23. Partition number q of a generation
follows number q % n of the generation before, which has n. So a key, whose hash modulo the count names its partition,
has all of its records in one partition of each generation, and each of these follows the one before.
"""

from __future__ import annotations

from dataclasses import dataclass

from actorproc.log.key_hash import partition_of_key


@dataclass(frozen=True, slots=True)
class Place:
    """A partition within its generation: `index` of `count`, counted from 0. `first`: number of the first partition."""

    generation: int
    index: int
    count: int
    first: int


@dataclass(frozen=True, slots=True)
class Generations:
    """`counts`: the partition count of each generation, oldest first."""

    counts: tuple[int, ...]

    @property
    def total(self) -> int:
        """The count of all partitions, those that have ended included."""
        return sum(self.counts)

    @property
    def count(self) -> int:
        """The partition count of the newest generation."""
        return self.counts[-1]

    @property
    def first(self) -> int:
        """Number of the first partition of the newest generation."""
        return self.total - self.count

    @property
    def before(self) -> range:
        """The partitions of the generation before the newest one."""
        return range(sum(self.counts[:-2]), self.first)

    def place(self, number: int) -> Place:
        """The place of a partition. Raises ValueError if the log does not have it."""
        first = 0
        for generation, count in enumerate(self.counts):
            if first <= number < first + count:
                return Place(generation, number - first, count, first)
            first += count
        raise ValueError(f"there is no partition {number}")

    def parent(self, number: int) -> int | None:
        """The partition that this one follows."""
        place = self.place(number)
        if not place.generation:
            return None
        before = self.counts[place.generation - 1]
        return place.first - before + place.index % before

    def ancestors(self, number: int) -> list[int]:
        """The partitions before this one, the nearest first."""
        found: list[int] = []
        parent = self.parent(number)
        while parent is not None:
            found.append(parent)
            parent = self.parent(parent)
        return found

    def children(self, number: int) -> range:
        """The partitions that follow this one."""
        place = self.place(number)
        if place.generation + 1 == len(self.counts):
            return range(0)
        following = place.first + place.count
        return range(following + place.index, following + self.counts[place.generation + 1], place.count)

    def has_key(self, number: int, key: bytes) -> bool:
        """Whether the records of a key are in this partition, within its generation."""
        place = self.place(number)
        return partition_of_key(key, place.count) == place.index
