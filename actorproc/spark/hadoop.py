"""URLs of places that Spark itself writes: as it spells them, and none of them inside what a processor owns."""

from __future__ import annotations

import re

from actorproc.config.settings import Settings
from actorproc.errors import UsageError
from actorproc.stores import open_store, overlap

_OURS = re.compile(r"(?:(?:s3|s3a|s3n|file)://.*|(?![A-Za-z][A-Za-z0-9+.-]*:/).*)")


def spark_url(url: str, settings: Settings) -> str:
    """`url` as Spark takes it: a path becomes `file:///...`, `s3://` becomes `s3a://`; what else Hadoop knows stays.

    Raises:
        UsageError: it is malformed.
    """
    return full_url(url, settings).replace("s3://", "s3a://", 1)


def check_apart(what: str, url: str, container: str, name: str, settings: Settings) -> None:
    """Check that Spark does not write among the objects of a processor.

    Args:
        what: that `url` is, for the message.
        container: URL of its store, in full.

    Raises:
        UsageError: it would.
    """
    if overlap(full_url(url, settings), f"{container}/{name}"):
        raise UsageError(
            f"{what} {url!r} is inside what {name} itself keeps at {container}, or around it: Spark's files there would be taken "
            "for its own, or the other way round. Give it a place beside that"
        )


def full_url(url: str, settings: Settings) -> str:
    """`url` as we spell it ourselves, in full; a place that is none of ours as it is.

    Raises:
        UsageError: it is malformed.
    """
    if not _OURS.fullmatch(url):
        return url
    return open_store(re.sub(r"^s3[an]://", "s3://", url), settings).url
