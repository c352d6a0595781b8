"""The arguments of `actorproc spark`: locations, sinks, settings. Without Spark."""

from __future__ import annotations

from typing import Any

import pytest

from actorproc.cli.spark_arguments import SparkArguments
from actorproc.config.settings import Settings
from actorproc.retention.readers import Reader
from actorproc.spark.checkpoint import reader_name
from actorproc.spark.options import parse_write_options

S3 = Settings.load(s3_endpoint="http://127.0.0.1:9000", s3_access_key="user", s3_secret_key="hidden")


def arguments(**options: Any) -> SparkArguments:
    given: dict[str, Any] = {
        "function": "app:late", "name": "Delays", "container": "state", "checkpoint": "/spark/c", "to": "console",
        "path": None, "mode": None, "options": {}, "trigger": "10s", "max_rows": None, "max_files": None,
        "columns": None,
        "native": False, "master": None, "remote": None, "packages": [], "conf": {}, "max_failures": 10,
        "stop_within": "30s", "wait": "0s",
    }  # fmt: skip
    return SparkArguments(**{**given, **options})


def urls(given: SparkArguments) -> dict[str, str]:
    return given.urls("memory://state", S3)


@pytest.mark.parametrize("path", ["s3://bucket/alerts", "s3a://bucket/alerts"])
def test_a_log_on_s3_needs_no_jars(path: str) -> None:
    given = arguments(to="actorproc", path=path)
    assert urls(given) == {"checkpoint": "file:///spark/c", "path": "s3://bucket/alerts"}
    assert not any("s3a" in name for name in given.session(urls(given), S3).description())
    given = arguments(to="parquet", path=path)
    assert urls(given)["path"] == "s3a://bucket/alerts"
    assert any("s3a" in name for name in given.session(urls(given), S3).description())


def test_a_log_is_opened_with_the_settings_unless_options_override_them() -> None:
    given = arguments(
        to="ActorProc", path="s3://bucket/alerts", options={"s3_access_key": "another", "logPartitions": "4"}
    )
    sink = given.sink(urls(given)["path"], S3)
    options = parse_write_options({"path": "s3://bucket/alerts", **sink.options}, stream=True)
    assert options.settings.store_options == {**S3.store_options, "s3_access_key": "another"}
    assert options.partitions == 4
    assert "hidden" not in f"{sink} {sink!r}"


def test_other_sinks_do_not_get_the_settings() -> None:
    given = arguments(to="parquet", path="s3://bucket/table", options={"compression": "zstd"})
    assert given.sink("s3a://bucket/table", S3).options == {"compression": "zstd"}


def test_a_connect_server_gets_only_settings_that_were_typed() -> None:
    given = arguments(to="actorproc", path="s3://bucket/alerts", remote="sc://host")
    assert given.sink("s3://bucket/alerts", given.spark_settings(S3, set())).options == {}
    typed = given.spark_settings(S3, {"s3_endpoint"})
    assert given.sink("s3://bucket/alerts", typed).options == {"s3_endpoint": "http://127.0.0.1:9000"}


@pytest.mark.parametrize(
    ("spec", "name"),
    [("app:delays", "app.delays"), ("größe:table", "gr--e.table"), ("_a:f", "a.f"), (f"{'x' * 200}:f", None)],
)
def test_a_reader_gets_a_valid_name_from_its_function(spec: str, name: str | None) -> None:
    found = reader_name(spec)
    assert name is None or found == name
    assert Reader.spark(found, "file:///c").name == found
