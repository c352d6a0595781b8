"""Verifies a built-in log: every segment, and that none is missing between two or at the end."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest

from actorproc.admin.damage import Damage, Verification
from actorproc.errors import CorruptObject
from actorproc.log.hints import list_hints, read_hint
from actorproc.log.metadata import open_log
from actorproc.log.segment import Segment
from actorproc.retention.boundary import read_boundary
from actorproc.runtime.tasks import gather
from actorproc.storage.listing import numbered_files
from actorproc.storage.names import log_boundary, log_dir, log_file
from actorproc.storage.store import Store


async def verify_log(log: Store, result: Verification) -> Mapping[str, int]:
    """Read each segment once. Producers and trims may run.

    Returns:
        Partition -> the sequence after its newest record.

    Raises:
        UsageError: there is no log.
    """
    meta = await open_log(log)
    newest = await _newest_by_hints(log)
    ends: dict[str, int] = {}
    # The partitions before the newest generation have ended; of the last of them only if the growth is complete.
    unsure = meta.generations.before if meta.growing else ()

    async def check(partition: str) -> None:
        must_end = bool(meta.generations.children(int(partition))) and int(partition) not in unsure
        found = _PartitionCheck(log, partition, result, must_end=must_end)
        await found.run(newest.get(partition, -1))
        ends[partition] = found.end

    names = meta.names
    for first in range(0, len(names), 4):  # each holds a segment in memory
        await gather(names[first : first + 4], check)
    return ends


async def _newest_by_hints(log: Store) -> dict[str, int]:
    """Partition -> base of the newest segment that a producer has appended, as hints say."""
    newest: dict[str, int] = {}
    for entry in (await list_hints(log)).entries:
        hint = await read_hint(log, entry.key)
        for partition, base in hint.newest.items() if hint else ():
            newest[partition] = max(base, newest.get(partition, -1))
    return newest


class _PartitionCheck:
    """Follows the segments of one partition from its boundary to its end.

    Args:
        must_end: whether the partition has ended, since others follow it.
    """

    def __init__(self, log: Store, partition: str, result: Verification, *, must_end: bool) -> None:
        self._log = log
        self._partition = partition
        self._result = result
        self._boundary = 0
        self._must_end, self._ended = must_end, False
        self._put_ids: dict[str, int] = {}
        self.end = 0
        """Base that the next segment should have."""

    async def run(self, newest: int) -> None:
        """Check all segments. `newest`: base of the newest one, as hints say; -1 if there is none."""
        listed = await numbered_files(self._log, log_dir(self._partition))
        await self._look()
        bases = [base for base, _ in listed if base >= self._boundary]  # lower ones are void, and about to be deleted
        for base, following in zip_longest(bases, bases[1:]):
            self._check_follows(base)
            segment = await self._segment(base)
            self.end = max(self.end, (following or base + 1) if segment is None else segment.next_base)
        if self._must_end and not self._ended:
            self._missing("the end of the partition is missing, and other partitions follow it")
        elif newest >= self.end + self._ended:
            self._missing(f"the records from {self.end} on are missing: a producer has appended at {newest}")

    async def _look(self) -> None:
        try:
            self._boundary = (await read_boundary(self._log, log_boundary(self._partition))).lowest
        except CorruptObject as error:
            self._result.found(Damage.of(error))
        self.end = max(self.end, self._boundary)

    def _check_follows(self, base: int) -> None:
        if self._ended:
            self._result.found(
                Damage(log_file(self._partition, base), "follows the end of the partition: it is not read")
            )
        if base > self.end:
            self._missing(f"the records {self.end} to {base - 1} are missing")
        elif base < self.end:
            key = log_file(self._partition, base)
            self._result.found(Damage(key, f"begins inside the segment before it, which ends at {self.end}"))

    async def _segment(self, base: int) -> Segment | None:
        """The segment, if it is sound."""
        key = log_file(self._partition, base)
        stored = await self._log.get(key)
        if stored is None:
            await self._look()
            if base >= self._boundary:
                self._result.found(Damage(key, "was deleted while it was read"))
            return None
        try:
            segment = await self._log.clock.run_in_thread(_examine, self._partition, base, stored.body)
        except CorruptObject as error:
            self._result.found(Damage.of(error))
            return None
        self._result.checked["segments"] += 1
        self._ended = self._ended or segment.footer.ended
        if (original := self._put_ids.setdefault(segment.footer.put_id, base)) != base:
            self._result.found(Damage(key, f"is a copy of the segment at {original}: its records are read twice"))
        return segment

    def _missing(self, what: str) -> None:
        self._result.found(Damage(log_file(self._partition, self.end), what))


def _examine(partition: str, base: int, body: bytes) -> Segment:
    """Decode all of it, so that all checksums are compared."""
    segment = Segment(partition, base, body)
    for _ in segment.batches():
        pass
    return segment
