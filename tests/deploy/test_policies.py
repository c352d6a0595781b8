"""The S3 policies in deploy/s3 are enough for each role, and refuse other requests. MinIO enforces them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aiobotocore.session import get_session

from actorproc import Batch, PartitionContext, PartitionHandler, Processor, Producer
from actorproc.admin.dead_letters import DeadLetters, Selection
from actorproc.admin.doctor import examine
from actorproc.admin.fleet_watch import FleetWatch
from actorproc.admin.read_output import output_rows
from actorproc.admin.readers import add_reader
from actorproc.admin.verify import verify
from actorproc.config.settings import Settings
from actorproc.errors import StoreRefused
from actorproc.retention.readers import Reader
from actorproc.storage.names import ProcessorLayout, log_file
from actorproc.storage.store import Store
from actorproc.stores import open_store
from tests.processor.doubling import QUICK
from tests.servers import S3Server

POLICIES = Path(__file__).parents[2] / "deploy" / "s3"
LAYOUT = ProcessorLayout("Delays")

pytestmark = [pytest.mark.servers, pytest.mark.slow]


class Delays(PartitionHandler):
    output_schema = "n long"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            number = record.json()
            ctx.state.set(number % 3, number)
            ctx.emit(record, {"n": number}) if number else ctx.dead_letter(record, "a zero")


class Site:
    """A bucket, and who uses it."""

    def __init__(self, server: S3Server, bucket: str, environment: pytest.MonkeyPatch) -> None:
        self.server = server
        self.bucket = bucket
        self.log, self.container = f"s3://{bucket}/events", f"s3://{bucket}/state"
        self.settings: dict[str, Any] = {"s3_endpoint": server.endpoint, "s3_region": "us-east-1"}
        self._environment = environment

    async def become(self, role: str) -> None:
        """From now on use credentials that have only the rights of this role."""
        policy = json.loads((POLICIES / f"{role}.json").read_text().replace("BUCKET", self.bucket))
        async with get_session().create_client(
            "sts",
            endpoint_url=self.server.endpoint,
            region_name="us-east-1",
            aws_access_key_id=self.server.access_key,
            aws_secret_access_key=self.server.secret_key,
        ) as sts:
            answer = await sts.assume_role(
                RoleArn="arn:aws:iam::1:role/test", RoleSessionName=role, Policy=json.dumps(policy)
            )
        for name, key in (("ACCESS_KEY_ID", "AccessKeyId"), ("SECRET_ACCESS_KEY", "SecretAccessKey")):
            self._environment.setenv(f"AWS_{name}", answer["Credentials"][key])
        self._environment.setenv("AWS_SESSION_TOKEN", answer["Credentials"]["SessionToken"])

    async def produce(self) -> None:
        await self.become("producer")
        async with Producer(self.log, partitions=2, settings=Settings.load(**self.settings)) as producer:
            await producer.send_many([str(n).encode() for n in range(10)], keys=[str(n).encode() for n in range(10)])

    async def process(self) -> None:
        await self.become("host")
        await Processor(
            Delays, source=self.log, container=self.container, dead_letter_limit=1, **QUICK, **self.settings
        ).run(until_end=True)

    def store(self, url: str) -> Store:
        return open_store(url, Settings.load(**self.settings))


@pytest.fixture
async def site(minio: S3Server, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(minio, await minio.new_bucket(), monkeypatch)


async def test_producer_host_reader_and_operator_have_enough_rights(site: Site) -> None:
    await site.produce()
    await site.process()
    await site.produce()  # to a log that exists
    await site.process()  # takes over the existing partitions

    await site.become("reader")
    async with site.store(site.container) as store:
        status = await FleetWatch(store, LAYOUT, 60).read_all()
        assert [partition.error for partition in status.partitions.values()] == [None, None]
        _, rows = await output_rows(store, LAYOUT, ["0", "1"])
        assert sorted([row["n"] async for row in rows]) == sorted([*range(1, 10)] * 2)
    settings = Settings.load(**site.settings)
    await add_reader(Reader.at("a-query", {"0": 0}), container=site.container, name="Delays", settings=settings)

    await site.become("operator")
    async with site.store(site.container) as store, site.store(site.log) as log:
        letters = await DeadLetters.opened(store, LAYOUT)
        assert (await letters.replay(Selection(), settings)).appended == 2
        assert (await letters.purge(await letters.plan_purge(Selection()))) > 0
        assert (await verify(store, LAYOUT, log)).damages == []
        assert (await examine(store)).safe


async def test_each_role_is_refused_the_rights_of_the_others(site: Site) -> None:
    await site.produce()
    await site.process()
    await site.become("host")
    async with site.store(site.log) as log:
        with pytest.raises(StoreRefused):
            await log.delete(log_file("0", 0))
        with pytest.raises(StoreRefused):
            await log.put(log_file("0", 100), b"")
    await site.become("reader")
    async with site.store(site.container) as store:
        with pytest.raises(StoreRefused):
            await store.put(LAYOUT.checkpoint("0"), b"")
    await site.become("producer")
    with pytest.raises(StoreRefused):
        async with site.store(site.container) as store:
            await store.get(LAYOUT.group)
