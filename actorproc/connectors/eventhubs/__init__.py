"""Event Hubs of Azure over AMQP as a source. Needs the extra `eventhubs`."""

from __future__ import annotations

from actorproc.runtime.requirements import how_to_install

try:
    import azure.eventhub  # noqa: F401
except ImportError:
    raise ImportError(f"a source of Event Hubs over AMQP needs azure-eventhub: {how_to_install('eventhubs')}") from None

from actorproc.connectors.eventhubs.source import EventHubsSource

__all__ = ["EventHubsSource"]
