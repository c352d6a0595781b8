"""How the tests' Spark is started."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from actorproc.spark.session import Session
from actorproc.spark.session_options import SHORT_LIVED, session_options
from actorproc.spark.stream_reader import LIMITS
from tests import servers
from tests.quiet import silence as silence

ROOT = Path(__file__).parents[2]

minio_is_long = pytest.mark.parametrize("s3_server", servers.params(minio=pytest.mark.long), indirect=True)
"""Parameters for tests that take seconds on each server: those on MinIO are marked `long`."""

needs_limits = pytest.mark.skipif(not LIMITS, reason="PySpark 4.1 has no limits for a Python data source")


def new_session(master: str = "local[2,4]", settings: Mapping[str, str] | None = None) -> SparkSession:
    """A session like that of `actorproc spark`, but small and quick to start."""
    small = {"spark.sql.shuffle.partitions": "1", "spark.ui.enabled": "false"}
    options = session_options(master, app="tests", conf=small | dict(settings or {}), java=SHORT_LIVED)
    return Session(master, options).open()
