"""How Spark itself reaches one of our stores, where it can."""

from __future__ import annotations

import re
from typing import Any

from pyspark.sql import SparkSession

from actorproc.config.settings import Settings

_S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem"
_PATTERN = re.compile(r"[\\*?\[\]{}]")  # what Spark takes for a pattern in a path


def native_url(spark: SparkSession, url: str) -> str | None:
    """The store's URL as Spark writes it, or None if Spark does not reach it."""
    if _PATTERN.search(url):
        return None
    if url.startswith("file://"):
        return url
    if url.startswith("s3://") and _jvm(spark).org.apache.spark.util.Utils.classIsLoadable(_S3A):
        return url.replace("s3://", "s3a://", 1)
    return None


def native_options(url: str, settings: Settings) -> dict[str, str]:
    """Options that tell `s3a` what our settings say. The session's own configuration does for what they leave open."""
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


def _jvm(spark: SparkSession) -> Any:
    return spark._jvm
