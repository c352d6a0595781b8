"""`log.json` and segments: creating, encoding, decoding, corruption."""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from actorproc.errors import CorruptObject, UsageError
from actorproc.group.membership import GroupDocument
from actorproc.log.metadata import create_log, open_log
from actorproc.log.segment import DECODED_BYTES, ROW_GROUP_BYTES, Segment, SegmentFooter, encode_segment
from actorproc.produce.producer import Producer
from actorproc.records import RECORD_SCHEMA, Batch
from actorproc.storage.names import ProcessorLayout, log_file
from actorproc.storage.parquet import write_parquet
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore

NOTES = SegmentFooter(put_id="put", producer="producer", newest=1, running=1, covers=0)


def table(values: list[bytes | None]) -> pa.Table:
    batch = Batch.of("0", values, range(len(values)), timestamps=[datetime(2013, 1, 1, tzinfo=UTC)] * len(values))
    return batch.to_arrow().select(RECORD_SCHEMA.names)


async def test_the_number_of_partitions_is_decided_once(store: Store) -> None:
    created = await create_log(store, 3)
    assert created.partitions == 3
    assert await create_log(store, 3) == created == await open_log(store)
    with pytest.raises(UsageError, match=r"has 3 partitions, not 4\. Leave the number out"):
        await create_log(store, 4)
    with pytest.raises(UsageError, match="has 3 partitions, not 8"):
        async with Producer(store, partitions=8):
            pass
    async with Producer(store) as producer:
        assert producer.partitions == 3


async def test_a_log_is_not_made_among_processors_nor_inside_one(store: Store) -> None:
    await store.put(ProcessorLayout("Delays").group, GroupDocument.of().to_json())
    with pytest.raises(UsageError, match=r"is a container, in which processors live \(Delays\)"):
        await create_log(store, 3)
    with pytest.raises(UsageError, match="in which processors live"):
        async with Producer(store, partitions=8):
            pass
    await store.put("group.json", GroupDocument.of().to_json())
    with pytest.raises(UsageError, match="is the folder of a processor"):
        await create_log(store, 3)
    await store.put("log.json", b'{"version":1,"partitions":3,"put_id":"x"}')
    assert (await create_log(store, 3)).partitions == 3, "one that is there goes on"


async def test_a_log_is_not_made_in_the_files_of_an_output(store: Store) -> None:
    await store.put(log_file("0", 0), b"a commit of a processor, or anything else")
    with pytest.raises(UsageError, match=r"has no log\.json, and files of another dataset"):
        await create_log(store, 3)
    assert await store.get("log.json") is None


@pytest.mark.parametrize("number", [0, -1, 100_001, 2.0, True, "8"])
async def test_an_invalid_partition_count_is_refused(number: Any) -> None:
    why = re.escape(f"partitions = {number!r}: a whole number from 1 to 100,000")
    with pytest.raises(UsageError, match=why):
        await create_log(Store(MemoryStore()), number)
    with pytest.raises(UsageError, match=why):
        Producer(Store(MemoryStore()), partitions=number)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"version":1}', b'{"version":1,"partitions":"x"}', b'{"version":2}']
)
async def test_a_log_that_is_described_wrongly_is_corrupt(body: bytes) -> None:
    store = Store(MemoryStore())
    await store.put("log.json", body)
    with pytest.raises(CorruptObject, match=r"log\.json: "):
        await open_log(store)


def test_no_changed_byte_of_the_data_goes_unnoticed() -> None:
    body = encode_segment(table([b"%d" % (i * i) for i in range(200)]), NOTES, "zstd")
    whole = [value for batch in Segment("0", 0, body).batches() for value in batch.values]
    footer = int.from_bytes(body[-8:-4], "little") + 8
    noticed = 0
    for index in range(len(body) - footer):
        broken = body[:index] + bytes([body[index] ^ 0x10]) + body[index + 1 :]
        try:
            assert [value for batch in Segment("0", 0, broken).batches() for value in batch.values] == whole
        except CorruptObject:
            noticed += 1
    assert noticed > 0.9 * (len(body) - footer)


def test_a_large_file_has_row_groups_that_fit_into_memory() -> None:
    data = table([b"%9d" % i * 100 for i in range(20_000)])
    groups = pq.ParquetFile(pa.BufferReader(encode_segment(data, NOTES, "zstd"))).metadata
    assert groups.num_row_groups == round(data.nbytes / ROW_GROUP_BYTES) > 1
    batches = list(Segment("0", 70, encode_segment(data, NOTES, "zstd")).batches())
    assert max(batch.nbytes for batch in batches) <= 1.5 * ROW_GROUP_BYTES
    assert [sequence for batch in batches for sequence in batch.sequences] == list(range(70, 20_070))


@pytest.mark.parametrize("skip", [0, 1, 6000, 19_999, 20_000])
def test_records_are_skipped_across_row_groups(skip: int) -> None:
    file = Segment("0", 0, encode_segment(table([b"%9d" % i * 100 for i in range(20_000)]), NOTES, "zstd"))
    assert [sequence for batch in file.batches(skip) for sequence in batch.sequences] == list(range(skip, 20_000))


@pytest.mark.parametrize("compression", ["zstd", "lz4", "snappy", "gzip", "none"])
def test_each_compression_reads_back(compression: str) -> None:
    values = [b"a" * 100, None, b"", b"\x00\xff"]
    (batch,) = Segment("0", 0, encode_segment(table(values), NOTES, compression)).batches()
    assert batch.values == values
    assert batch.data.schema.equals(RECORD_SCHEMA)


def test_a_foreign_parquet_file_is_not_a_segment() -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": [1, 2]}), sink)
    with pytest.raises(CorruptObject, match="is not a valid SegmentFooter document"):
        Segment("0", 0, sink.getvalue())
    with pytest.raises(CorruptObject, match="has no records"):
        Segment("0", 0, encode_segment(table([]), NOTES, "zstd"))


def test_a_segment_slightly_above_the_row_group_size_has_one_row_group() -> None:
    data = table([b"x" * 1000] * 4_300)
    assert data.nbytes > ROW_GROUP_BYTES
    assert pq.ParquetFile(pa.BufferReader(encode_segment(data, NOTES, "zstd"))).num_row_groups == 1


@pytest.mark.parametrize("dictionary", [True, False])
def test_a_small_file_that_unpacks_to_much_is_read_in_pieces(dictionary: bool) -> None:
    """As a dictionary it holds one text of 1 MB, which each record repeats; plain, zstd packs the repeats."""
    records = table([bytes(2**20)] * 200)
    body = write_parquet(
        records, {"actorproc.log": NOTES.to_json().decode()}, use_dictionary=["value"] if dictionary else []
    )
    assert len(body) < 70_000
    segment = Segment("0", 0, body)
    assert segment.group_bytes <= DECODED_BYTES
    read = 0
    for batch in segment.batches(skip=3):
        assert batch.nbytes <= DECODED_BYTES
        assert batch.first == read + 3
        read += len(batch)
    assert read == 197


def test_repeated_keys_do_not_split_a_row_group() -> None:
    """A long dictionary of short keys is no reason: pieces would be slower to read."""
    count = 20_000
    keys = [b"%05d" % (n % 400) for n in range(count)]
    times = [datetime(2013, 1, 1, tzinfo=UTC)] * count
    records = Batch.of("0", [b"value %d" % n for n in range(count)], range(count), keys=keys, timestamps=times)
    segment = Segment("0", 0, encode_segment(records.to_arrow().select(RECORD_SCHEMA.names), NOTES, "zstd"))
    assert [len(batch) for batch in segment.batches()] == [count]
