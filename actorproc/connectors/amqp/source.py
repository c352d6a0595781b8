"""Queues of an AMQP 1.0 broker as partitions: one connection and one exclusive consumer for each."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio

from actorproc.config.options import with_secrets
from actorproc.config.settings import Settings
from actorproc.connectors.amqp.address import PASSWORD, AmqpAddress, parse_address
from actorproc.connectors.amqp.link import UNAUTHORIZED, AmqpLink, Refused
from actorproc.connectors.amqp.messages import Identity, deliveries_of, encoded, identity_by
from actorproc.errors import SourceError, UsageError
from actorproc.records import Batch
from actorproc.runtime.clock import SYSTEM, Clock
from actorproc.runtime.logger import get_logger
from actorproc.sources.queue_protocol import Consumer, Deliveries, QueueSource
from actorproc.sources.replay_target import Appendable

QUIET = 1.0
"""Seconds without a message after which the broker is asked whether the queue is empty."""

_ANSWER = 30.0  # seconds that the broker may take to accept a connection or a consumer
_RETRY = 1.0  # seconds between two attempts at a queue that another consumer has

logger = get_logger(__name__)


class AmqpSource(QueueSource, Appendable):
    """Reads queues by AMQP 1.0. The name of a partition is that of its queue.

    Args:
        url: `amqps://USER@HOST/orders.{0..7}`, or a list of queues with commas; `amqp://` without TLS.
        options: `password`, or the variable AMQP_PASSWORD; `identity`, `address`, `idle_timeout`, `virtual_host`,
            `ca_file`, `certificate_file`, `key_file`: see docs/queues.md. The content of a file: `@PATH`.

    Raises:
        UsageError: the URL is not of its form, or an option is wrong.
    """

    def __init__(
        self,
        url: str,
        options: Mapping[str, Any] | None = None,
        *,
        settings: Settings | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        del settings  # of no use here, and an argument of every source's class
        self.url = url
        self._address = parse_address(url, with_secrets("source option", options or {}))
        self._clock = clock
        self._tls = _tls_context(self._address)

    async def open(self) -> None:
        """Log in once, to see that the broker is there.

        Raises:
            UsageError: the broker refuses the login.
            SourceError: it does not answer.
        """
        try:
            async with self._connected("check") as link, self._answering("the login"):
                await link.opened()
        except Refused as error:
            if error.condition != UNAUTHORIZED:
                raise
            raise UsageError(
                f"source {self}: the broker refuses the login of {self._address.user or 'an anonymous user'}; check "
                f"the user in the URL, and {PASSWORD} or the source option password"
            ) from error

    async def partitions(self) -> Sequence[str]:
        return self._address.queues

    @asynccontextmanager
    async def consume(self, partition: str, unacknowledged: int) -> AsyncIterator[Consumer]:
        while True:
            async with self._connected(partition) as link:
                try:
                    async with self._answering(f"a consumer of queue {partition}"):
                        await link.attach(self._address.template.replace("{}", partition), unacknowledged)
                except Refused as error:
                    if not error.is_taken:
                        raise
                    logger.debug("queue.taken", partition=partition, error=str(error))
                else:
                    yield _AmqpConsumer(link, partition, identity_by(self._address.identity))
                    return
            await self._clock.sleep(_RETRY)

    def check_appendable(self) -> None:
        """Raises UsageError: a message that is sent again could not be told from the one before."""
        kind = self._address.identity
        if kind != "message-id" and not kind.startswith("annotation:"):
            raise UsageError(
                f"source {self}: with identity = {kind!r} a letter that is sent again would be taken for the message "
                "that it was, and not be handled. Replay into a log of its own (--into LOG), and process that one"
            )

    async def append(self, partition: str, records: Batch, transaction: str) -> Mapping[int, str]:
        """Send records to a queue, with message ids of their own."""
        messages, refused = encoded(records, transaction)
        if messages:
            address = self._address.template.replace("{}", partition)
            async with self._connected(partition) as link, self._answering(f"the answers to messages for {partition}"):
                refused |= await link.send(address, messages)
        return refused

    @asynccontextmanager
    async def _connected(self, purpose: str) -> AsyncIterator[AmqpLink]:
        address, loop = self._address, asyncio.get_running_loop()
        link = AmqpLink(address, f"actorproc-{purpose}-{self._clock.nonce()}", self._clock)
        try:
            async with self._answering("a connection"):
                await loop.create_connection(lambda: link, address.host, address.port, ssl=self._tls)
        except OSError as error:  # ssl.SSLError, too
            raise SourceError(f"{self}: the broker cannot be reached: {error}") from error
        try:
            yield link
        finally:
            link.close()

    @asynccontextmanager
    async def _answering(self, what: str) -> AsyncIterator[None]:
        with anyio.move_on_after(_ANSWER) as scope:
            yield
        if scope.cancelled_caught:
            raise SourceError(f"{self}: the broker has not answered for {_ANSWER:g} s, asked for {what}")


class _AmqpConsumer(Consumer):
    def __init__(self, link: AmqpLink, queue: str, identity: Identity) -> None:
        self._link, self._queue, self._identity = link, queue, identity

    async def receive(self) -> Deliveries:
        if not self._link.messages:
            with anyio.move_on_after(QUIET):
                while not self._link.messages:
                    await self._link.wait_for_change()
        if not self._link.messages:
            await self._link.drain()
        messages = list(self._link.messages)
        self._link.messages.clear()
        return deliveries_of(self._queue, messages, self._identity)

    async def acknowledge(self, count: int) -> None:
        self._link.accept(count)


def _tls_context(address: AmqpAddress) -> ssl.SSLContext | None:
    """Raises UsageError: a certificate or key cannot be read."""
    if not address.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=address.ca_file)
        if address.certificate_file is not None:
            context.load_cert_chain(address.certificate_file, address.key_file)
    except OSError as error:
        raise UsageError(f"source {address}: ca_file, certificate_file or key_file cannot be read: {error}") from None
    return context
