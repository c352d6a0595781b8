"""A processor takes over from the Kinesis Client Library, whose leases are in DynamoDB."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiobotocore.session import AioSession

from actorproc.errors import UsageError
from tests.connectors.kinesis.kcl import kcl, rows
from tests.connectors.kinesis.servers import REGION, KinesisServer, dynalite
from tests.connectors.kinesis.test_processing import Feed
from tests.connectors.kinesis.test_source import FIRST, Stream, aggregated, read
from tests.servers import REQUIRED, Unavailable

pytestmark = pytest.mark.servers

_NAMES = count()


class Leases:
    """The table of an application."""

    def __init__(self, client: Any) -> None:
        self.client, self.name = client, f"application-{next(_NAMES)}"

    async def create(self) -> None:
        await self.client.create_table(
            TableName=self.name,
            AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
            BillingMode="PAY_PER_REQUEST",
        )

    async def put(self, key: str, checkpoint: str, place: int = 0) -> None:
        """As DynamoDBLeaseSerializer of the library writes it."""
        item = {
            "leaseKey": {"S": key}, "leaseOwner": {"S": "worker"}, "leaseCounter": {"N": "7"},
            "ownerSwitchesSinceCheckpoint": {"N": "0"}, "checkpoint": {"S": checkpoint},
            "checkpointSubSequenceNumber": {"N": str(place)},
        }  # fmt: skip
        await self.client.put_item(TableName=self.name, Item=item)


@contextmanager
def or_skip() -> Iterator[None]:
    try:
        yield
    except Unavailable as reason:
        if REQUIRED:
            raise
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def dynamo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with or_skip(), dynalite(tmp_path_factory.mktemp("dynalite")) as url:
        yield url


@pytest.fixture
async def leases(dynamo: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Leases]:
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", dynamo)
    login = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
    async with AioSession().create_client("dynamodb", region_name=REGION, endpoint_url=dynamo, **login) as client:
        leases = Leases(client)
        await leases.create()
        yield leases


@pytest.fixture
async def stream(kinesis: KinesisServer) -> Stream:
    stream = Stream(kinesis)
    await kinesis.create(stream.name)
    return stream


async def sequence_numbers(stream: Stream) -> dict[int, str]:
    """Kinesis' sequence numbers of the records in one page, by their own number."""
    async with stream.opened() as source:
        chunk = await anext(source.read(FIRST, await source.start(FIRST, "earliest")))
        numbers = {record.json()["n"]: dict(record.headers)["sequence-number"] or b"" for record in chunk.batch}
        return {n: number.decode().partition(".")[0] for n, number in numbers.items()}


async def rest(stream: Stream, leases: Leases, shard: str = FIRST) -> list[int] | None:
    """The numbers that are left; None: the library has not read the shard."""
    async with stream.opened() as source:
        position = await source.position_of(f"kcl:{leases.name}", shard)
        return None if position is None else (await read(source, shard, position))[0]


@pytest.mark.slow
async def test_reading_goes_on_after_the_checkpoint(stream: Stream, leases: Leases) -> None:
    await stream.put(range(10))
    numbers = await sequence_numbers(stream)
    assert await rest(stream, leases) is None, "there is no lease"
    for checkpoint, left in (
        ("LATEST", None),
        ("TRIM_HORIZON", list(range(10))),
        (numbers[6], [7, 8, 9]),
        (numbers[9], []),
    ):
        await leases.put(FIRST, checkpoint)
        assert await rest(stream, leases) == left


@pytest.mark.slow
async def test_leases_of_an_application_of_several_streams_count(stream: Stream, leases: Leases) -> None:
    await stream.put(range(5))
    numbers = await sequence_numbers(stream)
    await leases.put(f"123456789012:another:1700000000:{FIRST}", numbers[0])
    assert await rest(stream, leases) is None
    await leases.put(f"123456789012:{stream.name}:1700000000:{FIRST}", numbers[2])
    assert await rest(stream, leases) == [3, 4]


async def test_an_aggregated_record_comes_again_unless_all_of_it_is_processed(stream: Stream, leases: Leases) -> None:
    await stream.put([0])
    await stream.server.put(stream.name, [("x", aggregated([("N1", b'{"n": %d}' % n) for n in range(1, 5)]))])
    await stream.put([5])
    number = (await sequence_numbers(stream))[3]
    await leases.put(FIRST, number, 3)
    assert await rest(stream, leases) == [5]
    await leases.put(FIRST, number, 2)
    assert (await rest(stream, leases) or [])[-5:] == [1, 2, 3, 4, 5]


@pytest.mark.slow
async def test_shards_that_are_finished_are_passed_over(stream: Stream, leases: Leases) -> None:
    """The lease of the first shard was removed, that of one child says that it has ended; the newest has none yet."""
    await stream.put(range(20))
    await stream.server.split(stream.name, FIRST)
    await stream.put(range(20, 40))
    [_, low, high] = [shard["ShardId"] for shard in await stream.server.shards(stream.name)]
    await stream.server.merge(stream.name, low, high)
    await stream.put(range(40, 60))
    await leases.put(low, "SHARD_END")
    await leases.put(high, "TRIM_HORIZON")
    async with stream.opened() as source:
        [newest] = {partition.name for partition in await source.partitions()} - {FIRST, low, high}
    assert await rest(stream, leases) == await rest(stream, leases, low) == []
    assert set(await rest(stream, leases, high) or []) < set(range(20, 40))
    assert await rest(stream, leases, newest) == list(range(40, 60))


@pytest.mark.long
async def test_a_processor_goes_on_where_the_library_itself_has_stopped(
    kinesis: KinesisServer, dynamo: str, leases: Leases, tmp_path: Path
) -> None:
    feed = Feed(kinesis, tmp_path / "state")
    await kinesis.create(feed.stream)
    await feed.put(range(30), good=True)
    await kinesis.split(feed.stream, FIRST)
    await feed.put(range(30, 60), good=True)
    application = f"{leases.name}-of-kcl"
    worker: dict[str, Any] = {
        "idleTimeBetweenReadsInMillis": 200,
        "shardSyncIntervalMillis": 1_000,
        "parentShardPollIntervalMillis": 500,
    }
    with or_skip(), kcl(tmp_path / "kcl", kinesis, dynamo, feed.stream, application, **worker):
        with anyio.fail_after(120):
            while len(rows(tmp_path / "kcl")) < 60:
                await anyio.sleep(0.5)
        await anyio.sleep(2)  # it checkpoints
    await feed.put(range(60, 90), good=True)
    assert await feed.process(start_from=f"kcl:{application}") == list(range(60, 90))
    assert sorted(row.event["n"] for row in rows(tmp_path / "kcl")) == list(range(60))


async def test_an_unknown_application_is_an_error(stream: Stream, leases: Leases) -> None:
    async with stream.opened() as source:
        with pytest.raises(UsageError, match="DynamoDB has no such table in this region"):
            await source.position_of("kcl:nobody", FIRST)
        with pytest.raises(UsageError, match="knows the positions of kcl:APPLICATION"):
            await source.position_of("kafka-group:x", FIRST)
