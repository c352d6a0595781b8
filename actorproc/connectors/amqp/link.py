"""One AMQP 1.0 connection with one receiver or sender, driven by the event loop: proton's protocol engine without I/O.

https://docs.oasis-open.org/amqp/core/v1.0/amqp-core-complete-v1.0.pdf
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any, cast

from proton import Collector, Connection, Delivery, Endpoint, Event, Link, ProtonException, Transport

from actorproc.connectors.amqp.address import AmqpAddress
from actorproc.errors import SourceError
from actorproc.runtime.clock import Clock

UNAUTHORIZED = "amqp:unauthorized-access"

_TAKEN = ("amqp:resource-locked", "amqp:resource-limit-exceeded", "Maximum Consumer Limit")  # the last: Artemis


class Refused(SourceError):
    """The broker has refused or ended something: `condition` is its AMQP error."""

    def __init__(self, message: str, condition: str = "") -> None:
        super().__init__(message)
        self.condition = condition

    @property
    def is_taken(self) -> bool:
        """Whether the queue has another consumer, and the broker allows one only."""
        return any(sign in str(self) for sign in _TAKEN)


class AmqpLink(asyncio.Protocol):
    """Connects, attaches a receiver, and keeps delivered messages that are not acknowledged.

    Everything happens on the event loop, in callbacks, so heartbeats go out while the reader waits. After
    an end by the broker or the network, `failure` has the reason, and every later call raises it.
    """

    def __init__(self, address: AmqpAddress, name: str, clock: Clock) -> None:
        self._address = address
        self._clock = clock
        self._engine = Transport()
        self._engine.idle_timeout = address.idle_timeout
        self._connection = Connection()
        self._connection.container = name
        self._connection.hostname = address.virtual_host or address.host
        self._collector = Collector()
        self._connection.collect(self._collector)
        self._receiver: Any = None
        self._sender: Any = None
        self._io: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._opened = self._attached = False
        self._is_draining = False
        self._owed = 0  # credit for accepted messages, until a drain has ended
        self._unacknowledged: deque[Delivery] = deque()
        self.messages: deque[bytes] = deque()
        """Delivered, and not taken by the reader, as they came."""
        self.failure: Refused | None = None
        self._log_in()

    def _log_in(self) -> None:
        sasl, address = self._engine.sasl(), self._address
        sasl.allow_insecure_mechs = not address.tls
        if address.user is not None:
            self._connection.user, self._connection.password = address.user, address.password or ""
            sasl.allowed_mechs("PLAIN")
        else:
            sasl.allowed_mechs("EXTERNAL ANONYMOUS" if address.certificate_file else "ANONYMOUS")
        self._engine.bind(self._connection)
        self._connection.open()

    # Calls

    async def opened(self) -> None:
        """Wait until the broker has accepted the login. Raises Refused."""
        while not self._opened:
            await self.wait_for_change()

    async def attach(self, address: str, credit: int) -> None:
        """Attach a receiver that may get `credit` messages. Raises Refused."""
        await self.opened()
        session = self._connection.session()
        session.open()
        self._receiver = session.receiver(f"{self._connection.container}-{address}")
        self._receiver.source.address = address
        self._receiver.snd_settle_mode, self._receiver.rcv_settle_mode = Link.SND_UNSETTLED, Link.RCV_FIRST
        self._receiver.open()
        self._receiver.flow(credit)
        self._work()
        while not self._attached:
            await self.wait_for_change()

    async def send(self, address: str, messages: Mapping[int, bytes]) -> dict[int, str]:
        """Send messages to a queue, and wait until the broker has accepted or refused each.

        Returns:
            Why messages are refused, by their numbers.

        Raises:
            Refused: the broker has ended the link or the connection.
        """
        await self.opened()
        session = self._connection.session()
        session.open()
        self._sender = session.sender(f"{self._connection.container}-{address}")
        self._sender.target.address, self._sender.snd_settle_mode = address, Link.SND_UNSETTLED
        self._sender.open()
        self._work()
        while not self._sender.state & Endpoint.REMOTE_ACTIVE:
            await self.wait_for_change()
        most, refused = self._sender.remote_max_message_size, dict[int, str]()
        if most:
            text = f"the message is larger than the broker takes ({most:,} bytes)"
            refused = {number: text for number, message in messages.items() if len(message) > most}
        sent = {number: self._sent(message) for number, message in messages.items() if number not in refused}
        self._work()
        for number, delivery in sent.items():
            while not delivery.remote_state:
                await self.wait_for_change()
            if delivery.remote_state != Delivery.ACCEPTED:
                condition = delivery.remote.condition
                refused[number] = f"the broker answers {delivery.remote_state}" + f": {condition}" * bool(condition)
            delivery.settle()
        return refused

    def _sent(self, message: bytes) -> Any:
        delivery = self._sender.delivery(self._sender.delivery_tag())
        self._sender.stream(message)
        self._sender.advance()
        return delivery

    async def wait_for_change(self) -> None:
        """Wait for anything new. Raises Refused."""
        if self.failure is not None:
            raise self.failure
        self._changed.clear()
        await self._changed.wait()
        if self.failure is not None:
            raise self.failure

    def accept(self, count: int) -> None:
        """Accept the oldest `count` messages, and then allow as many others. Raises Refused."""
        if self.failure is not None:
            raise self.failure
        for _ in range(count):
            delivery = self._unacknowledged.popleft()
            delivery.update(Delivery.ACCEPTED)
            delivery.settle()
        self._work()  # proton would send the credit first, and the broker could deliver too many
        self._owed += count
        self._allow()

    async def drain(self) -> None:
        """Wait until the broker has delivered its messages, as far as credit allows. Raises Refused."""
        self._is_draining = True
        try:
            self._receiver.drain(0)
            self._work()
            while self._receiver.draining():
                await self.wait_for_change()
        finally:
            self._is_draining = False
            self._allow()

    def _allow(self) -> None:
        """Allow the broker as many other messages as were accepted. A drain comes first: new credit cancels it."""
        if self._owed and not self._is_draining and self.failure is None:
            self._receiver.flow(self._owed)
            self._owed = 0
            self._work()

    def close(self) -> None:
        """End the connection without a wait. Messages that are not accepted go back."""
        if self._io is not None and self.failure is None:
            self._connection.close()
            self._work()
            self._fail("the connection was closed")
        if self._timer is not None:
            self._timer.cancel()
        if self._io is not None:
            self._io.close()

    # Callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._io = cast(asyncio.Transport, transport)
        self._work()

    def data_received(self, data: bytes) -> None:
        at = 0
        try:
            while at < len(data) and (room := self._engine.capacity()) > 0:
                self._engine.push(data[at : at + room])
                at += room
                self._handle_events()
        except ProtonException as error:
            self._fail(f"it sent what is not AMQP 1.0: {error}")
        self._work()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the connection was lost{f': {exc}' if exc else ''}")

    # The engine

    def _work(self) -> None:
        """Let the engine write, handle its events, and come again in time for the next heartbeat."""
        if self._io is None or self._io.is_closing():
            return
        try:
            deadline = self._engine.tick(self._clock.monotonic())
            self._handle_events()
            while (size := self._engine.pending()) > 0:
                self._io.write(self._engine.peek(size) or b"")
                self._engine.pop(size)
                self._handle_events()
            self._handle_events()
        except ProtonException as error:
            self._fail(str(error))
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline:
            wait = max(0.0, deadline - self._clock.monotonic())
            self._timer = asyncio.get_running_loop().call_later(wait, self._work)

    def _handle_events(self) -> None:
        while (event := self._collector.peek()) is not None:
            self._handle(event)
            self._collector.pop()

    def _handle(self, event: Any) -> None:
        match event.type:
            case Event.DELIVERY if event.link.is_sender:
                self._changed.set()
            case Event.DELIVERY:
                self._receive(event.delivery)
            case Event.CONNECTION_REMOTE_OPEN:
                self._opened = True
                self._changed.set()
            case Event.LINK_FLOW if event.link.is_receiver and (unused := event.link.drained()):
                event.link.flow(unused)  # nothing is left to deliver; later messages may use the credit
                self._changed.set()
            case Event.LINK_REMOTE_OPEN:  # without an address, a detach with the reason follows
                self._attached = bool(event.link.is_receiver and event.link.remote_source.address)
                self._changed.set()
            case Event.LINK_REMOTE_CLOSE | Event.LINK_REMOTE_DETACH:
                self._end("the consumer", event.link.remote_condition)
            case Event.SESSION_REMOTE_CLOSE:
                self._end("the session", event.session.remote_condition)
            case Event.CONNECTION_REMOTE_CLOSE:
                self._end("the connection", event.connection.remote_condition)
            case Event.TRANSPORT_ERROR:
                self._end("the connection", event.transport.condition)

    def _receive(self, delivery: Any) -> None:
        if not delivery.readable or delivery.partial:
            return
        message = bytes(delivery.link.recv(delivery.pending) or b"")
        delivery.link.advance()
        self._unacknowledged.append(delivery)
        self.messages.append(message)
        self._changed.set()

    def _end(self, what: str, condition: Any) -> None:
        name, text = (condition.name, condition.description) if condition else ("", "")
        self._fail(f"the broker has ended {what}: {name} {text}".rstrip(": "), name)

    def _fail(self, why: str, condition: str = "") -> None:
        if self.failure is None:
            self.failure = Refused(f"{self._address}: {why}", condition)
        self._changed.set()
