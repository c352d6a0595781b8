"""Streams of Kinesis as a source, on kinesis-local: shards, positions, limits and errors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from hashlib import md5
from itertools import count
from random import Random
from time import process_time
from typing import Any

import anyio
import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from actorproc import Settings
from actorproc.connectors.kinesis import KinesisSource, newest
from actorproc.connectors.kinesis.aggregation import HashRange, TooLarge, user_records
from actorproc.connectors.kinesis.columns import decode
from actorproc.connectors.kinesis.pace import Pace
from actorproc.connectors.kinesis.position import SEQUENCE_BITS, Position, sequences
from actorproc.connectors.kinesis.requests import put_requests
from actorproc.errors import PartitionGone, RecordsLost, SourceError, UsageError
from actorproc.records import Batch
from actorproc.runtime.clock import Clock
from actorproc.sources.protocol import Chunk, Partition
from actorproc.testing import check_source
from tests.connectors.kinesis.servers import Faults, KinesisServer

pytestmark = pytest.mark.servers

_NAMES = count()
_QUICK = {"reads_per_second": 1000}
_ALL = HashRange(0, 2**128 - 1)
FIRST = "shardId-000000000000"


class Stream:
    """A new stream."""

    def __init__(self, server: KinesisServer) -> None:
        self.server, self.name = server, f"flights-{next(_NAMES)}"
        self.url = server.url(self.name)

    async def put(self, numbers: Iterable[int]) -> None:
        await self.server.put(self.name, [(f"N{n % 10}", b'{"n": %d}' % n) for n in numbers])

    def source(self, options: dict[str, Any] | None = None, **settings: Any) -> KinesisSource:
        given = self.server.options if options is None else options
        return KinesisSource(self.url, given | _QUICK, settings=Settings(**{"poll_interval": 0.02} | settings))

    @asynccontextmanager
    async def opened(self, options: dict[str, Any] | None = None, **settings: Any) -> AsyncIterator[KinesisSource]:
        source = self.source(options, **settings)
        await source.open()
        try:
            yield source
        finally:
            await source.close()


@pytest.fixture
async def stream(kinesis: KinesisServer) -> Stream:
    stream = Stream(kinesis)
    await kinesis.create(stream.name)
    return stream


async def read(source: KinesisSource, partition: str, position: str) -> tuple[list[int], Chunk]:
    """The numbers up to the present end, and the chunk that says so."""
    found: list[int] = []
    with anyio.fail_after(30):
        async for chunk in source.read(partition, position):
            found += [record.json()["n"] for record in chunk.batch]
            if chunk.ended or not len(chunk.batch):
                return found, chunk
    raise AssertionError


# Reading a shard


async def test_a_stream_keeps_the_contract_of_a_source(stream: Stream) -> None:
    await stream.put(range(20))

    async def add() -> None:
        await stream.put([20])

    options = stream.server.options | {"max_records": 7}
    report = await check_source(lambda: stream.source(options), add=add, patience=20)
    assert report.records == {FIRST: 21}


async def test_a_record_has_its_key_arrival_and_number(stream: Stream) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    await stream.put([14])
    async with stream.opened() as source:
        chunk = await anext(source.read(FIRST, await source.start(FIRST, "earliest")))
        [record] = chunk.batch
        assert (record.key, record.json()) == (b"N4", {"n": 14})
        assert record.timestamp is not None
        assert before < record.timestamp < datetime.now(UTC) + timedelta(seconds=1)
        assert record.sequence == round(record.timestamp.timestamp() * 1_000) << SEQUENCE_BITS
        assert dict(record.headers) == {"sequence-number": chunk.next.partition(":")[0].encode()}
        assert await source.time_at(FIRST, await source.start(FIRST, "earliest")) == record.timestamp
        assert await source.time_at(FIRST, chunk.next) is None


async def test_reading_begins_at_the_end_or_at_a_time(stream: Stream) -> None:
    async with stream.opened() as source:
        empty = await source.start(FIRST, "latest")
        await stream.put(range(3))
        await anyio.sleep(0.05)
        middle = datetime.now(UTC)
        await anyio.sleep(0.05)
        await stream.put(range(3, 6))
        latest, end = await source.start(FIRST, "latest"), await source.end(FIRST)
        assert (await read(source, FIRST, empty))[0] == list(range(6))
        assert (await read(source, FIRST, await source.start(FIRST, middle)))[0] == [3, 4, 5]
        assert (await read(source, FIRST, await source.start(FIRST, middle + timedelta(hours=1))))[0] == []
        assert (await read(source, FIRST, latest))[0] == []
        assert end.position == latest
        await stream.put([6])
        assert (await read(source, FIRST, latest))[0] == [6]


async def test_the_end_is_found_behind_many_records(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest, "_PAGE", 4)
    await stream.put(range(10))
    await anyio.sleep(1.1)
    await stream.put(range(10, 30))
    async with stream.opened() as source:
        end = await source.end(FIRST)
        numbers, last = await read(source, FIRST, await source.start(FIRST, "earliest"))
        assert numbers == list(range(30))
        assert source.sequence_before(FIRST, last.next) == end.sequence


async def test_shards_that_split_and_merge_end_and_name_their_children(stream: Stream) -> None:
    await stream.put(range(10))
    async with stream.opened() as source:
        await stream.server.split(stream.name, FIRST)
        children = (await stream.server.shards(stream.name))[1:]
        low, high = (child["ShardId"] for child in children)
        await stream.put(range(10, 30))
        assert await source.partitions() == [
            Partition(FIRST), Partition(low, (FIRST,)), Partition(high, (FIRST,))
        ]  # fmt: skip
        numbers, last = await read(source, FIRST, await source.start(FIRST, "earliest"))
        assert numbers == list(range(10))
        assert last.ended
        assert (await read(source, FIRST, last.next))[1].ended, "the end comes again"
        of_children = [(await read(source, child, await source.start(child, "earliest")))[0] for child in (low, high)]
        assert sorted(of_children[0] + of_children[1]) == list(range(10, 30))
        for child, numbers in zip((low, high), of_children, strict=True):
            has = await source.keys_of(child)
            assert {n % 10 for n in range(10) if has(b"N%d" % n)} == {n % 10 for n in numbers}
        assert all(numbers == sorted(numbers) and numbers for numbers in of_children)
        await stream.server.merge(stream.name, low, high)
        assert set((await source.partitions())[-1].parents) == {low, high}


# Refusals of the service


@asynccontextmanager
async def through_faults(stream: Stream) -> AsyncIterator[tuple[KinesisSource, Faults]]:
    """A source without patience, four records a read, and the proxy before its server."""
    async with (
        Faults(stream.server).running() as faults,
        stream.opened(faults.options | {"max_records": 4}, store_patience=0.001) as source,
    ):
        yield source, faults


async def test_throttling_and_expired_iterators_are_waited_for(stream: Stream) -> None:
    await stream.put(range(10))
    async with through_faults(stream) as (source, faults):
        faults.errors["GetRecords"] = [*["ProvisionedThroughputExceededException"] * 3, "ExpiredIteratorException"]
        faults.errors["GetShardIterator"] = ["ProvisionedThroughputExceededException"]
        assert (await read(source, FIRST, await source.start(FIRST, "earliest")))[0] == list(range(10))
        assert not any(faults.errors.values())


async def test_iterators_that_expire_between_pages_repeat_nothing(stream: Stream) -> None:
    await stream.put(range(10))
    async with through_faults(stream) as (source, faults):
        numbers: list[int] = []
        async for chunk in source.read(FIRST, await source.start(FIRST, "earliest")):
            if not len(chunk.batch):
                break
            numbers += [record.json()["n"] for record in chunk.batch]
            faults.errors["GetRecords"] = ["ExpiredIteratorException"]
        assert numbers == list(range(10))
        assert faults.asked.count("GetShardIterator") >= 3, "a new one for each that expired"


class NoWait(Clock):
    """A clock that notes how long it should sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


async def test_all_readers_of_a_shard_share_its_reads_and_bytes_per_second(stream: Stream) -> None:
    await stream.put([1])
    clock = NoWait()
    source = KinesisSource(stream.url, stream.server.options | {"reads_per_second": 0.01}, clock=clock)
    await source.open()
    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(source.time_at, FIRST, str(Position()))
    await source.close()
    assert sorted(round(seconds, -2) for seconds in clock.slept) == [100, 200, 300]
    pace = Pace(clock, 0.2)
    await pace.turn()
    pace.spent(10 * 2**20)
    await pace.turn()
    assert 4.9 < clock.slept[-1] <= 5


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("AccessDeniedException", r"these credentials need kinesis:DescribeStreamSummary, ListShards"),
        ("UnrecognizedClientException", r"the access key is unknown there; .* and the region"),
        ("ExpiredTokenException", r"the credentials have expired"),
        ("KMSAccessDeniedException", r"these credentials need kms:Decrypt"),
    ],
)
async def test_a_refusal_names_the_remedy(stream: Stream, code: str, message: str) -> None:
    async with Faults(stream.server, {"DescribeStreamSummary": [code]}).running() as faults:
        with pytest.raises(SourceError, match=message):
            async with stream.opened(faults.options):
                pass


async def test_a_stream_that_is_not_there_is_named(kinesis: KinesisServer) -> None:
    with pytest.raises(SourceError, match=r"us-east-1/flights-\d+: there is no such stream in this region and account"):
        async with Stream(kinesis).opened():
            pass


async def test_a_service_that_is_away_is_named(stream: Stream) -> None:
    options = stream.server.options | {"endpoint": "http://127.0.0.1:9"}
    with pytest.raises(SourceError, match=r"cannot be read: Could not connect"):
        async with stream.opened(options):
            pass


async def test_a_shard_whose_records_have_all_expired_is_not_listed(stream: Stream) -> None:
    async with stream.opened() as source:
        with pytest.raises(PartitionGone, match=r"shardId-000000000009 .* is no shard of the stream any more"):
            await read(source, "shardId-000000000009", str(Position()))


async def test_a_stream_that_was_created_again_is_another_one(stream: Stream) -> None:
    await stream.put(range(3))
    async with stream.opened() as source:
        async with stream.server.client() as client:
            await client.delete_stream(StreamName=stream.name)
            with anyio.fail_after(10):
                while stream.name in (await client.list_streams())["StreamNames"]:
                    await anyio.sleep(0.02)
        await stream.server.create(stream.name)
        with pytest.raises(RecordsLost, match=r"deleted and created again"):
            await source.partitions()


async def test_records_that_expired_before_they_were_read_are_reported(stream: Stream) -> None:
    await stream.put(range(3))
    long_ago = int((datetime.now(UTC) - timedelta(hours=25)).timestamp() * 1_000)
    position = str(Position("1", long_ago << SEQUENCE_BITS, long_ago))
    async with stream.opened() as source:
        with pytest.raises(RecordsLost, match=r"keeps records since .*on_out_of_range = fail"):
            await read(source, FIRST, position)
    async with stream.opened(on_out_of_range="earliest") as source:
        assert (await read(source, FIRST, position))[0] == [0, 1, 2]
    async with stream.opened(on_out_of_range="latest") as source:
        assert (await read(source, FIRST, position))[0] == []


async def test_a_retention_that_was_made_longer_is_found_before_records_count_as_lost(stream: Stream) -> None:
    await stream.put(range(3))
    async with stream.opened() as source:
        _, last = await read(source, FIRST, await source.start(FIRST, "earliest"))
        read_once = Position.parse(last.next)._replace(seen=source._stream.oldest - 3_600_000)
        async with stream.server.client() as client:
            await client.increase_stream_retention_period(StreamName=stream.name, RetentionPeriodHours=48)
        assert (await read(source, FIRST, str(read_once)))[0] == []


async def test_an_idle_shard_moves_its_position_once_an_hour(stream: Stream) -> None:
    async with stream.opened() as source:
        _, first = await read(source, FIRST, await source.start(FIRST, "earliest"))
    seen = Position.parse(first.next).seen
    assert timedelta() <= datetime.now(UTC) - datetime.fromtimestamp(seen / 1_000, UTC) < timedelta(hours=1)
    assert seen % 3_600_000 == 0


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("kinesis://events", {}, r"write kinesis://REGION/STREAM"),
        ("kinesis://eu-west-1/a/b", {}, r"write kinesis://"),
        ("kinesis://eu-west-1/a?x=1", {}, r"write kinesis://"),
        ("kinesis://me:hidden@eu-west-1/a", {}, r"no credentials in a URL"),
        ("kinesis://eu-west-1/a", {"acces_key": "x"}, r"did you mean access_key\?"),
        ("kinesis://eu-west-1/a", {"access_key": "x"}, r"give both, or neither"),
        ("kinesis://eu-west-1/a", {"max_records": 0}, r"source option max_records = 0"),
    ],
)
def test_wrong_urls_and_options_are_refused(url: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        KinesisSource(url, options)
    assert "hidden" not in str(refused.value)


# Sequences


def test_sequences_do_not_depend_on_where_reading_begins() -> None:
    times = np.array([5, 5, 5, 3, 9, 9, 8, 8, 12], np.int64)
    whole = sequences(times, -1)
    assert (np.diff(whole) > 0).all()
    assert whole[0] == 5 << SEQUENCE_BITS
    for cut in range(1, len(times)):
        assert (sequences(times[cut:], int(whole[cut - 1])) == whole[cut:]).all()


def test_records_before_the_time_at_which_reading_begins_are_dropped() -> None:
    records = [
        {"SequenceNumber": str(n), "Data": "", "PartitionKey": "k", "ApproximateArrivalTimestamp": time}
        for n, time in ((1, 7.998), (2, 8.5), (3, 8.4))
    ]
    body = json.dumps({"Records": records, "NextShardIterator": "x", "MillisBehindLatest": 0}).encode()
    begin = Position.at_time(8_500)
    found = decode(body, FIRST, begin, _ALL)
    assert found.batch.sequences == [8_500 << SEQUENCE_BITS, (8_500 << SEQUENCE_BITS) + 1]
    assert found.place == Position("3", found.batch.last, 8_500)
    assert decode(body, FIRST, Position.at_time(9_000), _ALL).place == Position.at_time(9_000)


# Records of the Kinesis Producer Library


def aggregated(records: list[tuple[str, bytes]], explicit: str | None = None) -> bytes:
    """As the library writes it (https://github.com/awslabs/amazon-kinesis-producer/blob/master/aggregation-format.md),
    by Google's encoder."""
    keys = list(dict.fromkeys(key for key, _ in records))
    entries = [{"partition_key_index": keys.index(key), "data": value} for key, value in records]
    if explicit is not None:
        entries = [entry | {"explicit_hash_key_index": 0} for entry in entries]
    message = _aggregated_record()(
        partition_key_table=keys, explicit_hash_key_table=[explicit] if explicit else [], records=entries
    )
    body: bytes = message.SerializeToString()
    return b"\xf3\x89\x9a\xc2" + body + md5(body).digest()


def _aggregated_record() -> Any:
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="kpl.proto", package="kpl", syntax="proto2")
    whole, record = file.message_type.add(name="AggregatedRecord"), file.message_type.add(name="Record")
    for number, name in enumerate(("partition_key_table", "explicit_hash_key_table"), 1):
        whole.field.add(name=name, number=number, type=field.TYPE_STRING, label=field.LABEL_REPEATED)
    whole.field.add(
        name="records", number=3, type=field.TYPE_MESSAGE, type_name=".kpl.Record", label=field.LABEL_REPEATED
    )
    for number, name in enumerate(("partition_key_index", "explicit_hash_key_index"), 1):
        record.field.add(name=name, number=number, type=field.TYPE_UINT64, label=field.LABEL_OPTIONAL)
    record.field.add(name="data", number=3, type=field.TYPE_BYTES, label=field.LABEL_REQUIRED)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("kpl.AggregatedRecord"))


async def test_aggregated_records_are_taken_apart(stream: Stream) -> None:
    several = aggregated([(f"N{n % 3}", b'{"n": %d}' % n) for n in range(1, 400)])
    await stream.put([0])
    await stream.server.put(stream.name, [("x", several)])
    await stream.put([400])
    async with stream.opened() as source:
        numbers, _ = await read(source, FIRST, await source.start(FIRST, "earliest"))
        assert numbers == list(range(401))
        chunk = await anext(source.read(FIRST, await source.start(FIRST, "earliest")))
        assert chunk.batch[5].key == b"N2"
        assert chunk.batch[5].headers[0][1].endswith(b".4")
        assert chunk.batch.disorder(-1) is None


def test_aggregated_records_of_another_shard_are_left_out() -> None:
    records = [(f"key{n}", b"%d" % n) for n in range(20)]
    data = aggregated(records)
    low, high = HashRange(0, 2**127 - 1), HashRange(2**127, 2**128 - 1)
    both = [user_records(data, half) or [] for half in (low, high)]
    assert all(both)
    assert sorted(record.place for half in both for record in half) == list(range(20))
    assert user_records(aggregated(records, "7"), high) == []
    assert len(user_records(aggregated(records, "7"), low) or []) == 20


@pytest.mark.parametrize("data", [b"", b"\xf3\x89\x9a\xc2", aggregated([("k", b"v")])[:-1], b"plain"])
def test_data_that_only_look_aggregated_stay_whole(data: bytes) -> None:
    assert user_records(data, _ALL) is None


def signed(body: bytes) -> bytes:
    return b"\xf3\x89\x9a\xc2" + body + md5(body).digest()


def test_an_aggregated_record_cannot_expand_to_gigabytes() -> None:
    with pytest.raises(TooLarge):
        user_records(aggregated([("k" * 1000, b"")] * 50_000), _ALL)
    assert len(user_records(aggregated([("k" * 256, b"")] * 5000), _ALL) or []) == 5000
    began = process_time()
    assert user_records(signed(b"\x0a" + b"\xff" * 2**20), _ALL) is None
    assert process_time() - began < 2, "a number without an end is not read to the end"


def test_any_bytes_in_an_aggregated_record_are_records_or_stay_whole() -> None:
    random, body = Random(7), aggregated([(f"key{n}", b"%d" % n) for n in range(5)], "7")[4:-16]
    for _ in range(5_000):
        at, size = random.randrange(len(body)), random.randrange(4)
        changed = body[:at] + random.choice([random.randbytes(size), b"\xff" * 9, b""]) + body[at + size :]
        found = user_records(signed(changed), _ALL)
        assert found is None or all(isinstance(record.value, bytes) for record in found)


# Appending


def records_of(values: list[bytes]) -> Batch:
    return Batch.of(FIRST, values, range(len(values)), keys=[b"N%d" % n for n in range(len(values))])


async def test_records_that_are_refused_alone_are_sent_again(stream: Stream) -> None:
    async with Faults(stream.server, halves=2).running() as faults, stream.opened(faults.options) as source:
        assert await source.append(FIRST, records_of([b'{"n": %d}' % n for n in range(10)]), "replay-1") == {}
        assert faults.asked.count("PutRecords") == 3
        numbers, _ = await read(source, FIRST, await source.start(FIRST, "earliest"))
    assert sorted(numbers) == list(range(10))


def test_requests_keep_to_the_limits_of_the_service() -> None:
    assert [len(request) for request in put_requests(records_of([b"x"] * 1_201))] == [500, 500, 201]
    large = records_of([b"x", bytes(3 * 2**20), bytes(2 * 2**20), bytes(5 * 2**20)])
    assert [len(request) for request in put_requests(large)] == [2, 1, 1]


def test_every_key_becomes_a_partition_key_that_kinesis_takes() -> None:
    keys = [None, b"", b"plane", b"\xff\x00", b"k" * 1_000]
    [request] = put_requests(Batch.of("0", [None] * 5, range(5), keys=keys))
    assert [put.key for put in request] == ["-", "-", "plane", "\\xff\x00", "k" * 256]


async def test_a_record_that_kinesis_does_not_take_is_refused_alone(stream: Stream) -> None:
    values = [b'{"n": %d}' % n for n in range(9)]
    values[2] = values[7] = bytes(101)
    async with Faults(stream.server, largest=100).running() as faults, stream.opened(faults.options) as source:
        refused = await source.append(FIRST, records_of(values), "replay-1")
        numbers, _ = await read(source, FIRST, await source.start(FIRST, "earliest"))
    assert sorted(refused) == [2, 7]
    assert all("the request was refused" in reason for reason in refused.values())
    assert sorted(numbers) == [0, 1, 3, 4, 5, 6, 8]


async def test_a_login_that_is_refused_is_no_letters_fault(stream: Stream) -> None:
    errors = {"PutRecords": ["AccessDeniedException"]}
    async with Faults(stream.server, errors=errors).running() as faults, stream.opened(faults.options) as source:
        with pytest.raises(SourceError, match="these credentials need"):
            await source.append(FIRST, records_of([b"x", b"y"]), "replay-1")
