"""Sources: streams that a processor reads. `open_source` makes one from a URL."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

from actorproc.config.settings import Settings
from actorproc.errors import UsageError
from actorproc.runtime.clock import SYSTEM, Clock
from actorproc.sources.guard import guard_source, source_kind
from actorproc.sources.log import LogSource
from actorproc.sources.output import OutputSource
from actorproc.sources.protocol import Chunk, End, Source, Start
from actorproc.stores import OUTPUT_SCHEME, SCHEMES

__all__ = ["Chunk", "End", "LogSource", "OutputSource", "Source", "Start", "guard_source", "open_source", "source_kind"]


class Service(NamedTuple):
    """The source of a URL's scheme: its module below `actorproc.sources`, its class, and what a URL looks like."""

    module: str
    source: str
    form: str


SERVICES = {
    "kafka": Service("kafka", "KafkaSource", "kafka://BROKER/TOPIC"),
    "eventhubs": Service("kafka", "KafkaSource", "eventhubs://NAMESPACE/HUB"),
    "eventhubs+amqp": Service("eventhubs", "EventHubsSource", "eventhubs+amqp://NAMESPACE/HUB"),
    "oci-streaming": Service("kafka", "KafkaSource", "oci-streaming://REGION/STREAM?pool=OCID"),
    "cosmos": Service("cosmos", "CosmosSource", "cosmos://ACCOUNT/DATABASE/CONTAINER"),
    "kinesis": Service("kinesis", "KinesisSource", "kinesis://REGION/STREAM"),
    "amqp": Service("queue", "AmqpSource", "amqp://USER@HOST/QUEUE"),
    "amqps": Service("queue", "AmqpSource", "amqps://USER@HOST/QUEUE"),
}
"""By scheme. A module is imported when it is used: the clients of the services take long, or are extras."""

KAFKA_SCHEMES = tuple(scheme for scheme, service in SERVICES.items() if service.module == "kafka")
APPENDABLE_SCHEMES = tuple(s for s, service in SERVICES.items() if service.module in ("eventhubs", "kinesis", "queue"))
"""Of sources that are `Appendable`."""


def open_source(
    source: str | os.PathLike[str] | Source,
    *,
    settings: Settings | None = None,
    clock: Clock = SYSTEM,
) -> Source:
    """The source at a URL, not yet connected. A `Source` is returned as it is.

    Args:
        source: URL or path of a built-in log, such as `s3://bucket/events` or `file:///data/events`; of another
            processor's output, such as `actorproc+s3://bucket/state/Delays`; of topics, such as
            `kafka://broker:9092/events`, `eventhubs://namespace/hub` or `oci-streaming://region/stream?pool=OCID`; of
            a hub over AMQP, such as `eventhubs+amqp://namespace/hub`; of a change feed, such as
            `cosmos://account/database/container`; of a stream of Kinesis, such as `kinesis://eu-west-1/events`; or of
            queues, such as `amqps://user@broker/orders.{0..7}`.

    Raises:
        UsageError: the URL has an unknown scheme, or `source` is neither a URL nor a Source.
    """
    if isinstance(source, Source):
        return source
    if isinstance(source, os.PathLike):
        source = os.fspath(source)
    if not isinstance(source, str):
        raise UsageError(
            f"source = {source!r}: expected the URL of a log, or an instance of a subclass of actorproc.Source"
        )
    if source.startswith(OUTPUT_SCHEME):
        return OutputSource.of_url(source, settings=settings, clock=clock)
    scheme, found, rest = source.partition("://")
    if found and scheme in SERVICES:
        return _source_of(SERVICES[scheme], source, settings or Settings.load(), clock)
    if found and scheme not in SCHEMES:
        forms = ", ".join(service.form for service in SERVICES.values())
        shown = f"{scheme}://{rest.rpartition('@')[2]}"  # a secret may be before it
        raise UsageError(
            f"source {shown!r}: there is no {scheme!r} source. Allowed are a built-in log (s3://, file:// or a path), "
            f"another processor's output ({OUTPUT_SCHEME}CONTAINER/PROCESSOR), {forms}, and a Source of your own "
            "(docs/sources.md)"
        )
    return LogSource(source, settings=settings, clock=clock)


def _source_of(service: Service, url: str, settings: Settings, clock: Clock) -> Source:
    """Raises UsageError: the extra of this service is not installed."""
    try:
        module = import_module(f"actorproc.sources.{service.module}")
    except ImportError as error:
        raise UsageError(f"source {url}: {error}") from None
    make: Callable[..., Source] = getattr(module, service.source)
    return make(url, settings.source_options, settings=settings, clock=clock)
