"""Readers and trim on real S3 servers, with a Spark checkpoint in the same bucket."""

from __future__ import annotations

from actorproc import Processor
from actorproc.admin.retained import RetainedLog, RetainedOutput
from actorproc.admin.trim import trim
from actorproc.config.settings import Settings
from actorproc.log.positions import end_base
from actorproc.retention.boundary import read_boundary
from actorproc.retention.readers import Reader, read_registry, register
from actorproc.sources import LogSource
from actorproc.storage.names import READERS, number_of
from actorproc.storage.store import Store
from actorproc.stores import open_store
from tests.admin.conftest import LAYOUT
from tests.admin.test_spark_checkpoint import offset
from tests.admin.test_trim_log import produce
from tests.servers import S3Server
from tests.simulation.aged import Aged
from tests.spark.committing import QUICK, Numbers


async def test_a_log_and_an_output_are_trimmed_behind_their_readers(s3_server: S3Server) -> None:
    settings = Settings.load(**{**QUICK, **s3_server.settings})
    url = await s3_server.new_url()
    async with open_store(f"{url}/events", settings) as log, open_store(f"{url}/state", settings) as state:
        await produce(log, 30)
        await produce(log, 30, first=30)
        source = LogSource(log, settings=settings)
        await Processor(Numbers, name="numbers", source=source, container=state, settings=settings).run(until_end=True)
        [reader] = (await read_registry(log, READERS)).readers.values()
        assert reader.url == f"{url}/state"
        await produce(log, 10, first=60)

        # Everything is hours old to them.
        old_log, old_state = RetainedLog(Store(Aged(log.backend))), RetainedOutput(Store(Aged(state.backend)), LAYOUT)
        trimmed = await trim(old_log, settings)
        assert trimmed.partitions[0].hold == (60, "reader numbers reads 60 next")
        assert [number_of(entry.key) for entry in (await log.list("partition=")).entries] == [60]
        assert await end_base(log, "0") == 70

        identity = await old_state.stream_identity()
        async with open_store(f"{url}/checkpoint", settings) as checkpoint:
            await checkpoint.put("offsets/3", b"\n".join([b"v1", b"{}", offset(identity, p0=4)]))
            await checkpoint.put("commits/3", b"v1\n{}")
        await register(state, LAYOUT.readers, Reader.spark("table", f"{url.replace('s3://', 's3a://')}/checkpoint"))
        trimmed = await trim(old_state, settings)
        assert trimmed.partitions[0].hold == (4, "reader table reads 4 next")
        assert (await read_boundary(state, LAYOUT.boundary("0"))).lowest == 4
        left = [number_of(entry.key) for entry in (await state.list(LAYOUT.output)).entries]
        assert left == [4, 5]
