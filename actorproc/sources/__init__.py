"""Sources: streams that a processor reads. `open_source` makes one from a URL."""

from __future__ import annotations

import os

from actorproc.config.settings import Settings
from actorproc.errors import UsageError
from actorproc.runtime.clock import SYSTEM, Clock
from actorproc.sources.guard import guard_source, source_kind
from actorproc.sources.log import LogSource
from actorproc.sources.output import OutputSource
from actorproc.sources.protocol import Chunk, End, Source, Start
from actorproc.stores import OUTPUT_SCHEME, SCHEMES

__all__ = ["Chunk", "End", "LogSource", "OutputSource", "Source", "Start", "guard_source", "open_source", "source_kind"]

AMQP_SCHEMES = ("amqp", "amqps")
KAFKA_SCHEMES = ("kafka", "eventhubs", "oci-streaming")
EVENT_HUBS_SCHEME = "eventhubs+amqp"
COSMOS_SCHEME = "cosmos"
KINESIS_SCHEME = "kinesis"
APPENDABLE_SCHEMES = (EVENT_HUBS_SCHEME, KINESIS_SCHEME, *AMQP_SCHEMES)
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
    scheme, found, _ = source.partition("://")
    if scheme in KAFKA_SCHEMES and found:
        return _kafka_source(source, settings or Settings.load(), clock)
    if scheme == EVENT_HUBS_SCHEME and found:
        return _event_hubs_source(source, settings or Settings.load(), clock)
    if scheme == COSMOS_SCHEME and found:
        return _cosmos_source(source, settings or Settings.load(), clock)
    if scheme == KINESIS_SCHEME and found:
        return _kinesis_source(source, settings or Settings.load(), clock)
    if scheme in AMQP_SCHEMES and found:
        return _amqp_source(source, settings or Settings.load(), clock)
    if found and scheme not in SCHEMES:
        raise UsageError(
            f"source {source!r}: there is no {scheme!r} source. Allowed are a built-in log (s3://, file:// or a path), "
            f"another processor's output ({OUTPUT_SCHEME}CONTAINER/PROCESSOR), kafka://BROKER/TOPIC, "
            "eventhubs://NAMESPACE/HUB, eventhubs+amqp://NAMESPACE/HUB, oci-streaming://REGION/STREAM?pool=OCID, "
            "cosmos://ACCOUNT/DATABASE/CONTAINER, kinesis://REGION/STREAM, amqps://USER@HOST/QUEUE, and a Source of "
            "your own (docs/sources.md)"
        )
    return LogSource(source, settings=settings, clock=clock)


def _kafka_source(url: str, settings: Settings, clock: Clock) -> Source:
    """Raises UsageError: the extra `kafka` is not installed."""
    try:
        from actorproc.sources.kafka import KafkaSource
    except ImportError as error:
        raise UsageError(f"source {url}: {error}") from None
    return KafkaSource(url, settings.source_options, settings=settings, clock=clock)


def _event_hubs_source(url: str, settings: Settings, clock: Clock) -> Source:
    """Raises UsageError: the extra `eventhubs` is not installed."""
    try:
        from actorproc.sources.eventhubs import EventHubsSource
    except ImportError as error:
        raise UsageError(f"source {url}: {error}") from None
    return EventHubsSource(url, settings.source_options, settings=settings, clock=clock)


def _cosmos_source(url: str, settings: Settings, clock: Clock) -> Source:
    """Raises UsageError: the extra `cosmos` is not installed."""
    try:
        from actorproc.sources.cosmos import CosmosSource
    except ImportError as error:
        raise UsageError(f"source {url}: {error}") from None
    return CosmosSource(url, settings.source_options, settings=settings, clock=clock)


def _kinesis_source(url: str, settings: Settings, clock: Clock) -> Source:
    """Imported where it is used: AWS's client takes a tenth of a second, which the command line need not wait for."""
    from actorproc.sources.kinesis import KinesisSource

    return KinesisSource(url, settings.source_options, settings=settings, clock=clock)


def _amqp_source(url: str, settings: Settings, clock: Clock) -> Source:
    """Raises UsageError: the extra `amqp` is not installed."""
    try:
        from actorproc.sources.queue import AmqpSource
    except ImportError as error:
        raise UsageError(f"source {url}: {error}") from None
    return AmqpSource(url, settings.source_options, clock=clock)
