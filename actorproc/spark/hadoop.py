"""Locations that Spark reads and writes through Hadoop: their URLs, options and JARs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from actorproc.config.settings import Settings
from actorproc.errors import UsageError
from actorproc.storage.backend import Backend, Hadoop
from actorproc.stores import open_store, overlap, own_url

_GLOB = re.compile(r"[\\*?\[\]{}]")  # Spark takes a path with these characters for a pattern
_HOME = Path(pyspark.__file__).parent


def _backend(url: str, settings: Settings) -> Backend | None:
    """Of a location in Spark's spelling or ours. None: actorproc does not know the store."""
    own = own_url(url)
    return None if own is None else open_store(own, settings).backend


def store_url(url: str, settings: Settings) -> str:
    """The absolute URL as actorproc spells it. A URL of a store that actorproc does not know is returned unchanged.

    Raises:
        UsageError: the URL is malformed.
    """
    backend = _backend(url, settings)
    return url if backend is None else backend.url


def spark_url(url: str, settings: Settings) -> str:
    """The absolute URL as Spark spells it: a path becomes `file:///...`, `s3://` becomes `s3a://`.

    Raises:
        UsageError: the URL is malformed.
    """
    backend = _backend(url, settings)
    return store_url(url, settings) if backend is None or backend.hadoop is None else backend.hadoop.url


def is_local(url: str, settings: Settings) -> bool:
    """Whether other machines cannot reach the location. Raises UsageError if the URL is malformed."""
    backend = _backend(url, settings)
    return backend is not None and backend.route is None


def native_place(spark: SparkSession, url: str, settings: Settings) -> Hadoop | None:
    """How Spark's own reader reads one of our stores; None if it cannot."""
    place = open_store(url, settings).backend.hadoop
    if place is None or _GLOB.search(url):
        return None
    jvm: Any = spark._jvm
    if place.file_system and not jvm.org.apache.spark.util.Utils.classIsLoadable(place.file_system):
        return None
    return place


def places(urls: Iterable[str], settings: Settings) -> list[Hadoop]:
    """How Spark reaches locations in stores that actorproc knows. Raises UsageError if a URL is malformed."""
    backends = [_backend(url, settings) for url in urls]
    return [backend.hadoop for backend in backends if backend is not None and backend.hadoop is not None]


def packages_of(place: Hadoop) -> list[str]:
    """Maven coordinates of its JARs, for the Hadoop that this PySpark brings."""
    jar = next(_HOME.glob("jars/hadoop-client-api-*.jar"))
    return [package.format(hadoop=jar.stem.removeprefix("hadoop-client-api-")) for package in place.packages]


def check_outside(option: str, url: str, container: str, name: str, settings: Settings) -> None:
    """Check that Spark does not write among the objects of processor `name`.

    Args:
        option: the option that gave `url`, for the message.
        container: absolute URL of the processor's store.

    Raises:
        UsageError: the location overlaps the processor's.
    """
    if overlap(store_url(url, settings), f"{container}/{name}"):
        raise UsageError(
            f"{option} {url!r} overlaps the folder of processor {name} at {container}: Spark's files and the "
            "processor's would be mixed. Choose a location outside it"
        )
