"""The hub that a URL names, the options of its client, and clients for it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

from azure.eventhub import TransportType, parse_connection_string
from azure.eventhub.aio import EventHubConsumerClient, EventHubProducerClient
from pydantic import BaseModel, ConfigDict, Field

from actorproc.config.options import parse_options
from actorproc.connectors.shared.entra_login import EntraLogin
from actorproc.errors import UsageError

FORM = "eventhubs+amqp://NAMESPACE/HUB[?group=NAME]"
CONNECTION_STRING = "EVENTHUBS_CONNECTION_STRING"
DEFAULT_GROUP = "$Default"


class EventHubsOptions(BaseModel):
    """Options of the source, by name in `source_options`.

    Attributes:
        connection_string: with the right to listen, and to send for a replay of dead letters. None: from
            EVENTHUBS_CONNECTION_STRING, else Microsoft Entra.
        transport: `websocket` goes through port 443, where 5671 is closed.
        prefetch: events of a partition that the service sends ahead. Twice as many may be in memory. The client takes
            one such window every 60 ms or so, so that with 300 it is at most some 4,000 events a second.
        exclusive: read with the epoch of the lease, so that the service cuts off an earlier owner. Without it, five
            readers may share a partition and consumer group.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    connection_string: str | None = Field(None, repr=False)
    transport: Literal["amqp", "websocket"] = "amqp"
    prefetch: int = Field(3_000, ge=1, le=100_000)
    exclusive: bool = True


@dataclass(frozen=True, slots=True)
class HubAddress:
    """A hub, read in a consumer group.

    Attributes:
        host: of the namespace.
        given: options as they were given; a value `@PATH` stands for the content of a file.
    """

    url: str
    host: str
    hub: str
    group: str
    given: Mapping[str, Any]

    @classmethod
    def of(cls, url: str, given: Mapping[str, Any]) -> HubAddress:
        """Raises UsageError: the URL is not of its form, or an option is wrong."""
        parts = urlsplit(url)
        hub, query = parts.path.strip("/"), parse_qs(parts.query, keep_blank_values=True)
        if "@" in parts.netloc:
            raise UsageError(f"source {parts.scheme}://...@...: no credentials in a URL; set {CONNECTION_STRING}")
        if not parts.netloc or not hub or "/" in hub or not query.keys() <= {"group"}:
            raise UsageError(f"source {url!r}: write {FORM}")
        host = parts.netloc if "." in parts.netloc else f"{parts.netloc}.servicebus.windows.net"
        address = cls(url, host, hub, query.get("group", [DEFAULT_GROUP])[0], given)
        address.options()
        return address

    def options(self) -> EventHubsOptions:
        """The options as they are now. Raises UsageError as `parse_options`."""
        return parse_options(
            self.url, EventHubsOptions, self.given, connection_string=os.environ.get(CONNECTION_STRING)
        )

    def client(self, entra: EntraLogin, retries: int = 1) -> EventHubConsumerClient:
        """A client of this hub, with the login of now. It connects when it is used, for each question anew.

        Args:
            entra: logs in where there is no connection string.
            retries: of a failed request, by the client itself.

        Raises:
            UsageError: the connection string is of another namespace, or azure-identity is not installed.
        """
        login, transport = self._login(), self._transport
        if login is None:
            return EventHubConsumerClient(
                self.host, self.hub, self.group, entra.credential(), retry_total=retries, transport_type=transport
            )
        return EventHubConsumerClient.from_connection_string(
            login, self.group, eventhub_name=self.hub, retry_total=retries, transport_type=transport
        )

    def producer(self, entra: EntraLogin) -> EventHubProducerClient:
        """A client that sends. Args and errors as of `client`."""
        login, transport = self._login(), self._transport
        if login is None:
            return EventHubProducerClient(self.host, self.hub, entra.credential(), transport_type=transport)
        return EventHubProducerClient.from_connection_string(login, eventhub_name=self.hub, transport_type=transport)

    @property
    def _transport(self) -> TransportType:
        return TransportType.AmqpOverWebsocket if self.options().transport == "websocket" else TransportType.Amqp

    def _login(self) -> str | None:
        """The connection string; None: Microsoft Entra logs in."""
        login = self.options().connection_string
        if login is not None:
            self._check_namespace(login)
        return login

    def _check_namespace(self, connection_string: str) -> None:
        try:
            host = parse_connection_string(connection_string).fully_qualified_namespace
        except ValueError as error:
            raise UsageError(f"source {self.url}: {CONNECTION_STRING} is no connection string: {error}") from None
        if host.lower() != self.host.lower():
            raise UsageError(
                f"source {self.url}: the connection string is of the namespace {host}, and the URL names {self.host}"
            )
