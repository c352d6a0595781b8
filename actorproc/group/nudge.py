"""Nudges: one datagram that says "look now". Timers do the same a little later."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from actorproc.config.settings import Settings
from actorproc.runtime.clock import SYSTEM, Clock
from actorproc.runtime.logger import get_logger

logger = get_logger(__name__)

INTERVAL = 0.1
"""Seconds between two calls of `on_nudge` at least: a flood of datagrams costs ten looks a second, no more."""

_MAGIC = b"actorproc look "
_LOOPBACK = "127.0.0.1"


class Nudges:
    """Makes other hosts of the group look at once. A nudge carries no facts, and may be lost or repeated.

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

    @asynccontextmanager
    async def listening(self, on_nudge: Callable[[], None]) -> AsyncIterator[None]:
        """`open` and `close` around a block."""
        await self.open(on_nudge)
        try:
            yield
        finally:
            await self.close()


class UdpNudges(Nudges):
    """Nudges as UDP datagrams. Datagrams without our magic and the name of our processor are ignored.

    Args:
        route: of the container's backend: decides which of this machine's addresses is advertised to other hosts.
        processor: name of the processor.
        log: bound to processor and host.
    """

    def __init__(
        self, route: str | None, settings: Settings, processor: str, *, clock: Clock = SYSTEM, log: Any = logger
    ) -> None:
        self._route = route
        self._settings = settings
        self._datagram = _MAGIC + processor.encode()
        self._clock = clock
        self._logger = log
        self._transport: asyncio.DatagramTransport | None = None

    async def open(self, on_nudge: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        try:
            host = await self._clock.run_in_thread(_own_address, self._route, self._settings)
            receiver = _Receiver(self._datagram, on_nudge)
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
        transport, self._transport, self.address = self._transport, None, None
        if transport is not None:
            transport.close()

    def send(self, address: str) -> None:
        if self._transport is None:
            return
        host, _, port = address.rpartition(":")
        with suppress(ValueError, OSError):  # malformed, or an address that we cannot reach
            numeric = str(ipaddress.ip_address(host.strip("[]")))  # a number only: to resolve a name would block
            self._transport.sendto(self._datagram, (numeric, int(port)))


class _Receiver(asyncio.DatagramProtocol):
    """Calls back for each valid datagram. Datagrams that come too fast share one call, which is late but not lost."""

    def __init__(self, expected: bytes, on_nudge: Callable[[], None]) -> None:
        self._expected = expected
        self._on_nudge = on_nudge
        self._loop = asyncio.get_running_loop()
        self._earliest = float("-inf")
        self._pending: asyncio.TimerHandle | None = None

    def datagram_received(self, data: bytes, addr: object) -> None:
        if data == self._expected and self._pending is None:
            self._pending = self._loop.call_at(max(self._earliest, self._loop.time()), self._call_back)

    def error_received(self, exc: Exception) -> None:
        """Ignore that a datagram reached no host: that host is gone, and timers do the rest."""

    def connection_lost(self, exc: Exception | None) -> None:
        if self._pending is not None:
            self._pending.cancel()

    def _call_back(self) -> None:
        self._pending = None
        self._earliest = self._loop.time() + INTERVAL
        self._on_nudge()


def _own_address(route: str | None, settings: Settings) -> str:
    """The numeric address at which other hosts of the group reach this machine. May ask the resolver, so it blocks."""
    if settings.nudge_host is not None:
        return str(socket.getaddrinfo(settings.nudge_host, None, type=socket.SOCK_DGRAM)[0][4][0])
    if route is None:
        return _LOOPBACK
    family, kind, protocol, _, place = socket.getaddrinfo(route, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(place)  # sends nothing: asks the routing table only
        return str(probe.getsockname()[0])
