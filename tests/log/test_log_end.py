"""Looking up the end of a partition while others append."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa

from actorproc.log.positions import log_end, position_of_time
from actorproc.log.segment import SegmentFooter, encode_segment
from actorproc.records import Batch
from actorproc.storage.backend import Listing
from actorproc.storage.names import log_file
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore


def hour(number: int) -> datetime:
    return datetime(2024, 1, 1, tzinfo=UTC) + timedelta(hours=number)


def microseconds(number: int) -> int:
    return int(hour(number).timestamp()) * 10**6


def file(at: int, put_id: str, *, covers: int, running: int | None = None) -> bytes:
    data = Batch.of("0", [b"x"], [0], timestamps=[hour(at)]).data
    time = microseconds(at)
    notes = SegmentFooter(put_id=put_id, producer="p", newest=time, running=running or time, covers=covers)
    return encode_segment(pa.Table.from_batches([data]), notes, "zstd")


async def test_a_segment_created_during_the_end_lookup_is_not_covered() -> None:
    class Raced(MemoryStore):
        raced = False

        async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
            listing = await super().list(prefix, after, limit)
            if prefix == "partition=0/" and not self.raced:
                self.raced = True
                await self.put_if_absent(log_file("0", 1), file(10, "another's", covers=1))
            return listing

    backend = Raced()
    store = Store(backend)
    await store.create(log_file("0", 0), file(1, "first", covers=0))
    end = await log_end(store, "0", 0)
    assert backend.raced
    # One producer appends an old record by the end found here; a later one has read that record's file, too.
    old = file(2, "old", covers=end.base, running=max(end.running, microseconds(2)))
    await store.create(log_file("0", 2), old)
    await store.create(log_file("0", 3), file(11, "last", covers=3))
    assert await position_of_time(store, "0", microseconds(9)) == (1, 0)
