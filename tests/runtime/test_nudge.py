"""Nudges over real sockets on the loopback interface."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import anyio
import pytest

from actorproc.config.settings import Settings
from actorproc.runtime.nudge import Nudges, UdpNudges
from actorproc.stores import open_store


class Listener:
    """Counts its nudges."""

    def __init__(self, processor: str = "p", container: str = "file:///state", **settings: str) -> None:
        given = Settings(**settings)
        self.nudges = UdpNudges(open_store(container, given).backend.route, given.nudge_host, processor)
        self.count = 0
        self._more = anyio.Event()

    def told(self) -> None:
        self.count += 1
        self._more.set()
        self._more = anyio.Event()

    async def told_times(self, times: int) -> None:
        with anyio.fail_after(60):
            while self.count < times:
                await self._more.wait()

    def listens(self) -> bool:
        return self.nudges.address is not None

    @property
    def address(self) -> str:
        assert self.nudges.address is not None
        return self.nudges.address

    @property
    def place(self) -> tuple[str, int]:
        host, _, port = self.address.rpartition(":")
        return host.strip("[]"), int(port)


@pytest.fixture
async def a() -> AsyncIterator[Listener]:
    listener = Listener()
    async with listener.nudges.listening(listener.told):
        yield listener


@pytest.fixture
async def b() -> AsyncIterator[Listener]:
    listener = Listener()
    async with listener.nudges.listening(listener.told):
        yield listener


async def test_a_host_nudges_another_to_look(a: Listener, b: Listener) -> None:
    a.nudges.send(b.address)
    await b.told_times(1)
    b.nudges.send(a.address)
    await a.told_times(1)
    assert (a.count, b.count) == (1, 1)


async def test_strangers_are_ignored(a: Listener) -> None:
    other = Listener(processor="another")
    async with other.nudges.listening(other.told):
        other.nudges.send(a.address)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for datagram in (b"", b"hello", b"actorproc look ", b"actorproc look pq", b"x" * 60_000):
                stranger.sendto(datagram, a.place)
        other.nudges.send(other.address)  # once this has arrived, so have the datagrams before it
        await other.told_times(1)
    assert a.count == 0


async def test_a_flood_is_bounded_and_the_last_of_it_is_not_lost(a: Listener, b: Listener) -> None:
    loop = asyncio.get_running_loop()
    start = loop.time()
    for _ in range(50):
        b.nudges.send(a.address)
    await a.told_times(1)
    for _ in range(50):
        b.nudges.send(a.address)
    await a.told_times(2)
    took = loop.time() - start
    assert took > 0.075, "the second call waits"
    assert a.count <= 2 + took / 0.1


NONSENSE = [
    "", "nowhere", "localhost:99", "127.0.0.1:", "127.0.0.1:x", "[::1]:9", ":9", "127.0.0.1:0", "127.0.0.1:-1",
    "127.0.0.1:65536", "127.0.0.1:99999999", "127.0.0.1:" + "9" * 5_000, "[fe80::1%\0]:9", "[fe80::1%\ud800]:9",
    "127.0.0.1:9",  # no listener there
]  # fmt: skip


@pytest.mark.parametrize("address", NONSENSE)
async def test_addresses_that_make_no_sense_are_passed_over(a: Listener, b: Listener, address: str) -> None:
    for _ in range(2):
        a.nudges.send(address)
        a.nudges.follow(address)
        await anyio.sleep(0.01)  # the loop closes a socket that failed in its next turn
    a.nudges.send(b.address)
    await b.told_times(1)
    assert a.listens()


async def test_a_host_that_lost_its_socket_goes_silent(a: Listener, b: Listener) -> None:
    b.nudges.follow(a.address)
    a.nudges.send(b.address)
    await b.told_times(1)
    transport = a.nudges._transport
    assert transport is not None
    transport.abort()
    for _ in range(2):
        a.nudges.send(b.address)
        a.nudges.follow(b.address)
        a.nudges.tell("0", 1)
        await anyio.sleep(0.01)
    assert not a.listens()


async def test_before_and_after_listening_nothing_is_sent_and_there_is_no_address(a: Listener) -> None:
    idle = Listener()
    assert not idle.listens()
    idle.nudges.send(a.address)
    async with idle.nudges.listening(idle.told):
        assert idle.listens()
    assert not idle.listens()
    idle.nudges.send(a.address)
    a.nudges.send(a.address)
    await a.told_times(1)
    assert a.count == 1


@pytest.mark.parametrize(
    ("container", "settings"),
    [
        ("memory://x", {}),
        ("file:///tmp/state", {}),
        ("s3://bucket/prefix", {"s3_endpoint": "http://127.0.0.1:9000"}),
        ("s3://bucket/prefix", {"s3_endpoint": "http://localhost:9000"}),
    ],
)
async def test_a_store_on_this_machine_makes_nudges_use_loopback(container: str, settings: dict[str, str]) -> None:
    listener = Listener(container=container, **settings)
    async with listener.nudges.listening(listener.told):
        assert listener.place[0] in ("127.0.0.1", "::1")


async def test_a_given_host_is_advertised_in_numbers() -> None:
    listener = Listener(nudge_host="localhost")
    async with listener.nudges.listening(listener.told):
        assert listener.place[0] in ("127.0.0.1", "::1")


async def test_a_translated_address_is_advertised_although_it_is_not_ours(a: Listener) -> None:
    listener = Listener(nudge_host="192.0.2.7")
    async with listener.nudges.listening(listener.told):
        host, port = listener.place
        assert host == "192.0.2.7"
        a.nudges.send(f"127.0.0.1:{port}")
        await listener.told_times(1)


@pytest.mark.parametrize("name", ["no such host", f"{'x' * 64}.example"])
async def test_an_unresolvable_host_name_only_switches_nudges_off(a: Listener, name: str) -> None:
    listener = Listener(nudge_host=name)
    async with listener.nudges.listening(listener.told):
        assert listener.nudges.address is None
        listener.nudges.send(a.address)


async def test_without_nudges_nothing_happens() -> None:
    nudges = Nudges()
    async with nudges.listening(lambda: pytest.fail("nobody can")):
        assert nudges.address is None
        nudges.send("127.0.0.1:9")
