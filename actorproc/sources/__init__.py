"""Sources: streams that a processor reads. `open_source` makes one from a URL."""

from __future__ import annotations

import os
from collections.abc import Callable

from actorproc import plugins
from actorproc.config.settings import Settings
from actorproc.errors import UsageError
from actorproc.runtime.clock import SYSTEM, Clock
from actorproc.sources.guard import guard_source, source_kind
from actorproc.sources.log import LogSource
from actorproc.sources.output_source import OutputSource
from actorproc.sources.protocol import Chunk, End, Source, Start
from actorproc.stores import OUTPUT_SCHEME, with_source_options

__all__ = ["Chunk", "End", "LogSource", "OutputSource", "Source", "Start", "guard_source", "open_source", "source_kind"]


SourceFactory = Callable[..., Source]
"""Makes the source at a URL: `make(url, options, settings=settings, clock=clock)`.

Registered as `actorproc.sources` under each scheme. See docs/extend.md. It connects to nothing yet, and refuses options
that it does not know (`parse_options`).
"""


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
        UsageError: the URL has an unknown scheme, an option is unknown, or `source` is neither a URL nor a Source.
    """
    if isinstance(source, Source):
        if settings is not None and (given := sorted(settings.source_options)):
            raise UsageError(
                f"source {source}: there is no source option {given[0]!r}: it is an object of your own; give its "
                "options to its constructor"
            )
        return source
    if isinstance(source, os.PathLike):
        source = os.fspath(source)
    if not isinstance(source, str):
        raise UsageError(
            f"source = {source!r}: expected the URL of a log, or an instance of a subclass of actorproc.Source"
        )
    settings = settings or Settings.load()
    if source.startswith(OUTPUT_SCHEME):
        return OutputSource.of_url(source, settings=with_source_options(source, settings), clock=clock)
    scheme, found, rest = source.partition("://")
    if found and scheme in plugins.names(plugins.SOURCES):
        what, options = f"source {scheme}://", settings.source_options
        return plugins.make(plugins.SOURCES, scheme, Source, what, source, options, settings=settings, clock=clock)  # type: ignore[type-abstract]
    if found and scheme not in plugins.names(plugins.STORES):
        known = ", ".join(f"{name}://" for name in plugins.names(plugins.SOURCES))
        shown = f"{scheme}://{rest.rpartition('@')[2]}"  # a secret may be before it
        raise UsageError(
            f"source {shown!r}: there is no {scheme!r} source. Allowed are a built-in log (s3://, file:// or a path), "
            f"another processor's output ({OUTPUT_SCHEME}CONTAINER/PROCESSOR), {known}, and a Source of your own "
            "(docs/sources.md)"
        )
    return LogSource(source, settings=with_source_options(source, settings), clock=clock)
