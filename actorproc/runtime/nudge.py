"""Nudges: one datagram that says "look now" to a host or a reader. Timers do the same a little later."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.lowlevel

from actorproc.runtime.clock import SYSTEM, Clock
from actorproc.runtime.logger import get_logger

logger = get_logger(__name__)

INTERVAL = 0.1
"""Seconds between two calls of `on_nudge` at least: a flood of datagrams costs ten looks a second, no more."""

FOLLOW_EVERY = 60.0
"""Seconds after which a reader asks a writer again for its news."""

FOLLOWERS_MAX = 1_000
"""Readers that a writer tells at most: whoever knows the topic can ask."""

NEWS_INTERVAL = 0.02
"""Seconds between two calls of `on_news` for one partition at least."""

_MAGIC = b"actorproc look "
_FOLLOW = b"actorproc follow "
_NEWS = b"actorproc news "
_NAME_MAX = 1_024  # bytes of a partition's name
_DIGITS_MAX = 20  # of a number
_NAMES_MAX = 10_000
_PORT_MAX = 65_535
_LOOPBACK = "127.0.0.1"


class News:
    """The newest numbers that writers have told of. They are hints: a file may not be there."""

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}

    def add(self, partition: str, number: int) -> None:
        if partition in self._newest or len(self._newest) < _NAMES_MAX:
            self._newest[partition] = max(number, self._newest.get(partition, 0))

    def take(self, partition: str, number: int) -> bool:
        """Whether somebody has told of this number or a later one. True once only, in case it is false."""
        return self._newest.pop(partition, -1) >= number


OnNews = Callable[[str, int], None]


class Nudges:
    """Makes other hosts of the group look at once, and readers of a log or an output.

    A nudge may be lost, repeated or false. A reader asks writers to be told (`follow`), and a writer tells its
    followers in which partition something is new (`tell`).

    This base class sends and receives none: then only the timers make hosts look.
    """

    address: str | None = None
    """The address at which this host listens, for the `send` of other hosts. None while it does not listen."""

    async def open(self, on_nudge: Callable[[], None]) -> None:
        """Listen, and call `on_nudge` on the event loop for each nudge. Never fails."""

    async def close(self) -> None:
        """Stop listening."""

    def send(self, address: str) -> None:
        """Nudge the host at `address`. Returns at once and never fails."""

    def follow(self, address: str) -> None:
        """Ask the writer at `address` for its news, unless it was asked a short time ago. Never fails."""

    def tell(self, partition: str, number: int) -> None:
        """Tell those who follow that this partition has a file of this number. Returns at once and never fails."""

    @asynccontextmanager
    async def listening(self, on_nudge: Callable[[], None]) -> AsyncIterator[None]:
        """`open` and `close` around a block."""
        await self.open(on_nudge)
        try:
            yield
        finally:
            await self.close()


class UdpNudges(Nudges):
    """Nudges as UDP datagrams. Datagrams without our magic and our topic are ignored.

    Args:
        route: of the container's backend: decides which of this machine's addresses is advertised to other hosts.
        host: the setting `nudge_host`: the address to advertise.
        topic: name of the processor, or identity of the log.
        on_news: called on the event loop with a partition and the number of its newest file.
        log: bound to processor and host.
    """

    def __init__(
        self,
        route: str | None,
        host: str | None,
        topic: str,
        *,
        on_news: OnNews = lambda partition, number: None,
        clock: Clock = SYSTEM,
        log: Any = logger,
    ) -> None:
        self._on_news = on_news
        self._route = route
        self._host = host
        self._topic = topic.encode()
        self._followers: dict[Any, float] = {}  # by address, as the socket gives it: until when they are told
        self._asked: dict[str, float] = {}  # writers, and when they were asked
        self._clock = clock
        self._logger = log
        self._transport: asyncio.DatagramTransport | None = None

    async def open(self, on_nudge: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        try:
            host = await self._clock.run_in_thread(_own_address, self._route, self._host)
            receiver = _Receiver(self._topic, on_nudge, self._on_news, self._add_follower, self._lost)
            try:
                transport, _ = await loop.create_datagram_endpoint(lambda: receiver, local_addr=(host, 0))
            except OSError:  # the given address is a translated one (NAT): listen on all, advertise that one
                everywhere = "::" if ":" in host else "0.0.0.0"  # noqa: S104
                transport, _ = await loop.create_datagram_endpoint(lambda: receiver, local_addr=(everywhere, 0))
        except (OSError, ValueError) as error:  # ValueError: a name that can be none, such as one with a label too long
            self._logger.warning(
                "nudge.off", error=str(error), what_to_do="set nudge_host to an address of this machine"
            )
            return
        self._transport = transport
        port = transport.get_extra_info("sockname")[1]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def close(self) -> None:
        transport = self._transport
        self._lost()
        if transport is not None:
            transport.close()
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()  # the socket is closed by the next turn of the loop

    def send(self, address: str) -> None:
        self._send(_MAGIC + self._topic, address)

    def follow(self, address: str) -> None:
        now = self._clock.monotonic()
        if self._transport is not None and now >= self._asked.get(address, float("-inf")) + FOLLOW_EVERY:
            self._asked = {asked: at for asked, at in self._asked.items() if now < at + FOLLOW_EVERY} | {address: now}
            self._send(_FOLLOW + self._topic, address)

    def tell(self, partition: str, number: int) -> None:
        if not self._followers:
            return
        now = self._clock.monotonic()
        self._followers = {address: until for address, until in self._followers.items() if until > now}
        for address in self._followers:
            self._put(_NEWS + self._topic + b"\0%d " % number + partition.encode(), address)

    def _add_follower(self, address: Any) -> None:
        if address in self._followers or len(self._followers) < FOLLOWERS_MAX:
            self._followers[address] = self._clock.monotonic() + 3 * FOLLOW_EVERY

    def _send(self, datagram: bytes, address: str) -> None:
        place = _place(address)
        if place is not None:
            self._put(datagram, place)

    def _put(self, datagram: bytes, place: Any) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        with suppress(Exception):  # a datagram that is not sent costs time only, an error here a whole host
            self._transport.sendto(datagram, place)

    def _lost(self) -> None:
        """The socket is closed. Hosts that see no address of this one leave it to its timers."""
        self._transport = self.address = None


class _Receiver(asyncio.DatagramProtocol):
    """Calls back for each valid datagram. Datagrams that come too fast share one call, which is late but not lost."""

    def __init__(
        self,
        topic: bytes,
        on_nudge: Callable[[], None],
        on_news: OnNews,
        on_follower: Callable[[Any], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._look, self._follow, self._news = _MAGIC + topic, _FOLLOW + topic, _NEWS + topic + b"\0"
        self._nudged = _Calls(INTERVAL, lambda name, number: on_nudge())
        self._told = _Calls(NEWS_INTERVAL, on_news)
        self._on_follower = on_follower
        self._on_lost = on_lost

    def datagram_received(self, data: bytes, addr: object) -> None:
        if data == self._look:
            self._nudged.due("", 0)
        elif data == self._follow:
            self._on_follower(addr)
        elif data.startswith(self._news) and len(data) <= len(self._news) + _NAME_MAX:
            number, space, partition = data.removeprefix(self._news).decode(errors="replace").partition(" ")
            if space and number.isdecimal() and len(number) <= _DIGITS_MAX:
                self._told.due(partition, int(number))

    def error_received(self, exc: Exception) -> None:
        """Ignore that a datagram reached no host: that host is gone, and timers do the rest."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._nudged.cancel()
        self._told.cancel()
        self._on_lost()


class _Calls:
    """Calls back with the names that are due, and the highest number of each, at most once in `interval` seconds."""

    def __init__(self, interval: float, call: OnNews) -> None:
        self._interval, self._call = interval, call
        self._loop = asyncio.get_running_loop()
        self._due: dict[str, int] = {}
        self._earliest = float("-inf")
        self._pending: asyncio.TimerHandle | None = None

    def due(self, name: str, number: int) -> None:
        if name in self._due or len(self._due) < _NAMES_MAX:
            self._due[name] = max(number, self._due.get(name, 0))
        if self._pending is None:
            self._pending = self._loop.call_at(max(self._earliest, self._loop.time()), self._run)

    def cancel(self) -> None:
        if self._pending is not None:
            self._pending.cancel()

    def _run(self) -> None:
        self._pending = None
        self._earliest = self._loop.time() + self._interval
        due, self._due = self._due, {}
        for name, number in due.items():
            self._call(name, number)


def nudges_of(
    route: str | None,
    host: str | None,
    topic: str,
    clock: Clock,
    on_news: OnNews = lambda partition, number: None,
) -> Nudges:
    """Nudges as datagrams; none where another clock than the system's rules, since a socket knows no other."""
    return UdpNudges(route, host, topic, on_news=on_news, clock=clock) if clock is SYSTEM else Nudges()


def _place(address: str) -> tuple[str, int] | None:
    """Host and port of an address that another host has written. None: no datagram can be sent to it.

    The host is a number: to resolve a name would block. asyncio closes the socket if the system cannot even be asked to
    send, because of a port out of range or a zone with a NUL, for example. So these are refused here.
    """
    host, _, port = address.rpartition(":")
    try:
        numeric, number = str(ipaddress.ip_address(host.strip("[]"))), int(port)
    except ValueError:
        return None
    return (numeric, number) if 0 < number <= _PORT_MAX and numeric.isascii() and numeric.isprintable() else None


def _own_address(route: str | None, given: str | None) -> str:
    """The numeric address at which other hosts of the group reach this machine. May ask the resolver, so it blocks."""
    if given is not None:
        return str(socket.getaddrinfo(given, None, type=socket.SOCK_DGRAM)[0][4][0])
    if route is None:
        return _LOOPBACK
    family, kind, protocol, _, place = socket.getaddrinfo(route, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(place)  # sends nothing: asks the routing table only
        return str(probe.getsockname()[0])
