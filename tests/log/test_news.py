"""News: readers of a log and of an output are told of files, and do not wait for the next poll."""

from __future__ import annotations

import socket
from contextlib import aclosing
from pathlib import Path

import anyio

from actorproc import Processor, Producer
from actorproc.config.settings import Settings
from actorproc.runtime.nudge import UdpNudges
from actorproc.sources.log import LogSource
from actorproc.sources.output_source import OutputSource
from actorproc.sources.protocol import Source
from tests.processor.doubling import QUICK, Double, fed

PATIENT = Settings.load(poll_interval=50)
"""A poll finds nothing in time: whoever is not told waits."""


class Reader:
    def __init__(self, source: Source, partition: str, position: str) -> None:
        self.source, self.partition, self.position = source, partition, position
        self.found: list[bytes | None] = []
        self.waits = anyio.Event()

    async def run(self) -> None:
        async with aclosing(self.source.read(self.partition, self.position)) as chunks:
            async for chunk in chunks:
                self.found += chunk.batch.values
                if not len(chunk.batch):
                    self.waits.set()

    async def has(self, count: int) -> None:
        with anyio.fail_after(30):
            while len(self.found) < count:
                await anyio.sleep(0.005)


async def test_a_producer_tells_the_readers_of_its_log(tmp_path: Path) -> None:
    async with Producer(tmp_path, partitions=1, linger=0) as producer:
        await (await producer.send("first"))
        source = LogSource(tmp_path, settings=PATIENT)
        await source.open()
        reader = Reader(source, "0", "0")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reader.run)
            await reader.waits.wait()
            await anyio.sleep(0.1)  # the reader's datagram is on its way
            for n in range(3):
                await (await producer.send(f"{n}"))
                await reader.has(2 + n)
            tasks.cancel_scope.cancel()
        await source.close()
    assert reader.found == [b"first", b"0", b"1", b"2"]


async def test_a_host_tells_the_readers_of_its_output(tmp_path: Path) -> None:
    stream = fed(1)
    async with Processor(Double, source=stream, container=tmp_path, **QUICK):
        source = OutputSource(tmp_path, "Double", settings=PATIENT)
        with anyio.fail_after(30):
            while not (tmp_path / "Double/output/partition=0").exists():
                await anyio.sleep(0.01)
        await source.open()
        reader = Reader(source, "0", "0+0")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reader.run)
            await reader.waits.wait()
            await anyio.sleep(0.1)
            for n in range(3):
                stream.append("0", [b"%d" % n])
                await reader.has(11 + n)
            tasks.cancel_scope.cancel()
        await source.close()
    assert len(reader.found) == 13


async def test_false_news_cost_a_look_and_lose_nothing(tmp_path: Path) -> None:
    async with Producer(tmp_path, partitions=1, linger=0) as producer:
        await (await producer.send("first"))
        source = LogSource(tmp_path, settings=Settings.load(poll_interval=0.2))
        await source.open()
        reader = Reader(source, "0", "0")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reader.run)
            await reader.waits.wait()
            await anyio.sleep(0.1)
            for number in (0, 1, 10**18):
                producer._hints.nudges.tell("0", number)
            producer._hints.nudges.tell("no partition", 3)
            await anyio.sleep(0.1)
            await (await producer.send("second"))
            await reader.has(2)
            tasks.cancel_scope.cancel()
        await source.close()
    assert reader.found == [b"first", b"second"]


async def test_news_of_strangers_and_odd_datagrams_are_ignored() -> None:
    told: list[tuple[str, int]] = []
    writer = UdpNudges(None, None, "p")
    reader = UdpNudges(None, None, "p", on_news=lambda partition, number: told.append((partition, number)))
    async with writer.listening(lambda: None), reader.listening(lambda: None):
        assert writer.address is not None
        assert reader.address is not None
        host, _, port = reader.address.rpartition(":")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for odd in (b"q\x001 0", b"p\x00-1 0", b"p\x001", b"p\x00" + b"9" * 50 + b" 0", b"p\x001 " + b"x" * 2_000):
                stranger.sendto(b"actorproc news " + odd, (host, int(port)))
        writer.tell("0", 1)  # nobody follows yet
        reader.follow(writer.address)
        with anyio.fail_after(30):
            while not told:
                writer.tell("0", 7)
                await anyio.sleep(0.01)
    assert set(told) == {("0", 7)}


async def test_a_writer_is_asked_again_after_a_minute_only() -> None:
    asked: list[str] = []

    class Counting(UdpNudges):
        def _send(self, datagram: bytes, address: str) -> None:
            asked.append(address)

    nudges = Counting(None, None, "p")
    async with nudges.listening(lambda: None):
        for _ in range(10):
            nudges.follow("127.0.0.1:9")
    assert asked == ["127.0.0.1:9"]
