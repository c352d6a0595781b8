"""Sources: streams that a processor can read. `open_source` makes one of a URL; docs/sources.md says how to write one."""

from __future__ import annotations

import os

from actorproc.config.settings import Settings
from actorproc.errors import UsageError
from actorproc.log.metadata import HOW_TO_CREATE
from actorproc.runtime.clock import SYSTEM, Clock
from actorproc.sources.guarded import guarded, kind_of
from actorproc.sources.log import LogSource
from actorproc.sources.output import OutputSource
from actorproc.sources.protocol import Chunk, End, Source, Start
from actorproc.stores import OUTPUT_SCHEME, SCHEMES

__all__ = ["Chunk", "End", "LogSource", "OutputSource", "Source", "Start", "guarded", "kind_of", "open_source"]


def open_source(
    source: str | os.PathLike[str] | Source,
    *,
    settings: Settings | None = None,
    clock: Clock = SYSTEM,
    create: str = HOW_TO_CREATE,
) -> Source:
    """The source that `source` names, not yet connected; a `Source` is returned as it is.

    Args:
        source: URL of a store with a built-in log in it, such as `s3://bucket/events`, `file:///data/events` or a path;
            or of another processor's output, such as `actorproc+s3://bucket/state/Delays`.
        create: as of `LogSource`.

    Raises:
        UsageError: there is no such kind of source.
    """
    if isinstance(source, Source):
        return source
    if isinstance(source, os.PathLike):
        source = os.fspath(source)
    if not isinstance(source, str):
        raise UsageError(
            f"source = {source!r}: the URL of a log, or an instance of a subclass of actorproc.sources.Source"
        )
    if source.startswith(OUTPUT_SCHEME):
        return OutputSource.of_url(source, settings=settings, clock=clock)
    scheme, found, _ = source.partition("://")
    if found and scheme not in SCHEMES:
        missing = "a Kafka source comes with a later version" if scheme == "kafka" else f"there is no {scheme!r} source"
        raise UsageError(
            f"source {source!r}: {missing}. Allowed are the built-in log, by the URL of its store "
            f"(s3://, file:// or a path), another processor's output ({OUTPUT_SCHEME}CONTAINER/PROCESSOR), and a Source of your own, see docs/sources.md"
        )
    return LogSource(source, settings=settings, clock=clock, create=create)
