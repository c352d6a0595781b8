"""Locations that Spark reads and writes through Hadoop: their URLs, the `s3a` options and the `s3a` JARs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from actorproc.config.settings import Settings
from actorproc.errors import UsageError
from actorproc.stores import open_store, overlap

_STORE_URL = re.compile(r"(?:(?:s3|s3a|s3n|file)://.*|(?![A-Za-z][A-Za-z0-9+.-]*:/).*)")
_GLOB = re.compile(r"[\\*?\[\]{}]")  # Spark takes a path with these characters for a pattern
_S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem"
_HOME = Path(pyspark.__file__).parent
_AWS_SDK = "2.35.4"
_AWS_SDK_PARTS = ("s3", "s3-transfer-manager", "sts", "apache-client")  # 19 MB; the SDK's bundle has 686 MB


def store_url(url: str, settings: Settings) -> str:
    """The absolute URL as actorproc spells it. A URL of a store that actorproc does not know is returned unchanged.

    Raises:
        UsageError: the URL is malformed.
    """
    if not _STORE_URL.fullmatch(url):
        return url
    return open_store(re.sub(r"^s3[an]://", "s3://", url), settings).url


def spark_url(url: str, settings: Settings) -> str:
    """The absolute URL as Spark spells it: a path becomes `file:///...`, `s3://` becomes `s3a://`.

    Raises:
        UsageError: the URL is malformed.
    """
    return store_url(url, settings).replace("s3://", "s3a://", 1)


def native_url(spark: SparkSession, url: str) -> str | None:
    """The URL of one of our stores as Spark spells it; None if Spark cannot read from it."""
    if _GLOB.search(url):
        return None
    if url.startswith("file://"):
        return url
    jvm: Any = spark._jvm
    if url.startswith("s3://") and jvm.org.apache.spark.util.Utils.classIsLoadable(_S3A):
        return url.replace("s3://", "s3a://", 1)
    return None


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


def s3a_options(url: str, settings: Settings) -> dict[str, str]:
    """Hadoop options for an `s3a://` URL: endpoint, keys and path style, as far as they are set."""
    if not url.startswith("s3a://"):
        return {}
    path_style = settings.s3_path_style if settings.s3_path_style is not None else settings.s3_endpoint is not None
    options = {
        "fs.s3a.endpoint": settings.s3_endpoint,
        "fs.s3a.endpoint.region": settings.s3_region,
        "fs.s3a.access.key": settings.s3_access_key,
        "fs.s3a.secret.key": settings.s3_secret_key,
        "fs.s3a.path.style.access": "true" if path_style else None,
    }
    return {name: value for name, value in options.items() if value is not None}


def s3a_packages() -> list[str]:
    """Maven coordinates of the `s3a` JARs for the Hadoop that this PySpark brings."""
    jar = next(_HOME.glob("jars/hadoop-client-api-*.jar"))
    hadoop = jar.stem.removeprefix("hadoop-client-api-")
    parts = [f"software.amazon.awssdk:{part}:{_AWS_SDK}" for part in _AWS_SDK_PARTS]
    return [f"org.apache.hadoop:hadoop-aws:{hadoop}", *parts]
