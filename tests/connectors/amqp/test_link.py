"""The link of an AMQP queue against a broker without a network, whose answers the test chooses the moment of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

pytest.importorskip("proton", reason="python-qpid-proton is not installed")

import anyio
from proton import Collector, Connection, Event, Message, Transport

from actorproc.connectors.amqp.address import parse_address
from actorproc.connectors.amqp.link import AmqpLink
from actorproc.runtime.clock import SYSTEM


class Broker:
    """A queue, and the link's asyncio transport. Frames from the link are handled at once; answers wait for `pump`."""

    def __init__(self, link: AmqpLink) -> None:
        self.ready: list[bytes] = []
        self.accepted = self.most_allowed = 0
        self.answers_drains = True
        self._link = link
        self._engine = Transport(mode=Transport.SERVER)
        sasl = self._engine.sasl()
        sasl.allow_insecure_mechs = True
        sasl.allowed_mechs("ANONYMOUS")
        self._connection, self._collector = Connection(), Collector()
        self._connection.collect(self._collector)
        self._engine.bind(self._connection)
        self._sender: Any = None

    def write(self, data: bytes) -> None:
        self._engine.push(bytes(data))
        while (event := self._collector.peek()) is not None:
            self._handle(event)
            self._collector.pop()

    def is_closing(self) -> bool:
        return False

    def close(self) -> None: ...

    def pump(self) -> None:
        """Deliver as many messages as the credit allows, answer a drain, and let the link read all of it."""
        if self._sender is not None:
            while self.ready and self._sender.credit > 0:
                delivery = self._sender.delivery(f"tag{len(self.ready)}")
                self._sender.stream(self.ready.pop(0))
                self._sender.advance()
                del delivery
            if self.answers_drains:
                self._sender.drained()
        while (size := self._engine.pending()) > 0:
            data = bytes(self._engine.peek(size) or b"")
            self._engine.pop(size)
            self._link.data_received(data)

    def _handle(self, event: Any) -> None:
        match event.type:
            case Event.CONNECTION_REMOTE_OPEN:
                event.connection.open()
            case Event.SESSION_REMOTE_OPEN:
                event.session.open()
            case Event.LINK_REMOTE_OPEN:
                self._sender = event.link
                self._sender.source.address = self._sender.remote_source.address
                self._sender.open()
            case Event.LINK_FLOW:
                self.most_allowed = max(self.most_allowed, event.link.credit)
            case Event.DELIVERY if event.delivery.updated:
                self.accepted += 1
                event.delivery.settle()


@pytest.fixture
async def link() -> AmqpLink:
    return AmqpLink(parse_address("amqp://broker/q", {}), "test", SYSTEM)


async def attached(link: AmqpLink, credit: int) -> Broker:
    broker = Broker(link)
    link.connection_made(cast(asyncio.BaseTransport, broker))
    await pumped(broker, lambda: link.attach("q", credit))
    return broker


async def pumped(broker: Broker, call: Callable[[], Any]) -> None:
    """Let a call of the link end, while the broker answers."""
    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(5):

            async def answer() -> None:
                while True:
                    broker.pump()
                    await anyio.sleep(0)

            tasks.start_soon(answer)
            await call()
            tasks.cancel_scope.cancel()


def send(broker: Broker, count: int) -> None:
    broker.ready += [bytes(Message(body=b"x", id=f"{n}").encode()) for n in range(count)]
    broker.pump()


@pytest.mark.parametrize("accepted", [1, 3])
async def test_messages_that_are_accepted_during_a_drain_do_not_cancel_it(link: AmqpLink, accepted: int) -> None:
    broker = await attached(link, 5)
    send(broker, 3)
    broker.answers_drains = False
    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(5):
            ended = anyio.Event()

            async def drain() -> None:
                await link.drain()
                ended.set()

            tasks.start_soon(drain)
            await anyio.wait_all_tasks_blocked()
            link.accept(accepted)
            broker.pump()
            await anyio.wait_all_tasks_blocked()
            assert (broker.accepted, ended.is_set()) == (accepted, False), "the broker has not said that it is empty"
            broker.answers_drains = True
            broker.pump()
            await ended.wait()
    send(broker, 10)
    assert len(link.messages) == 5 + accepted, "all of the credit is there again"
    assert broker.most_allowed == 5, "and never more"


async def test_messages_that_a_drain_brings_end_it(link: AmqpLink) -> None:
    broker = await attached(link, 4)
    send(broker, 2)
    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(5):
            tasks.start_soon(link.drain)
            await anyio.wait_all_tasks_blocked()
            link.accept(2)
            send(broker, 9)
    broker.pump()
    assert len(link.messages) == 6
    link.accept(1)
    broker.pump()
    assert len(link.messages) == 7


async def test_a_drain_that_is_cancelled_gives_back_the_credit(link: AmqpLink) -> None:
    broker = await attached(link, 3)
    send(broker, 1)
    broker.answers_drains = False
    with anyio.move_on_after(0.01):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(link.drain)
            await anyio.wait_all_tasks_blocked()
            link.accept(1)
            await anyio.sleep_forever()
    send(broker, 9)
    assert len(link.messages) == 4


@pytest.mark.parametrize("odd", [b"", b"\xff", b"\0Ss\xc0\xff", b"AMQP\0\1\0\0"])
async def test_a_delivery_that_is_no_message_leaves_the_link_as_it_is(link: AmqpLink, odd: bytes) -> None:
    broker = await attached(link, 5)
    broker.ready += [odd]
    send(broker, 1)
    assert link.failure is None
    assert [len(message) for message in link.messages] == [len(odd), len(bytes(Message(body=b"x", id="0").encode()))]
    link.accept(2)
    assert broker.accepted == 2
