"""What `actorproc spark` makes of its command line. Without Spark."""

from __future__ import annotations

from typing import Any

import pytest

from actorproc.cli.spark_query import SparkArguments, _check, _reader_name, _session, _sink, _urls
from actorproc.config.settings import Settings
from actorproc.errors import UsageError
from actorproc.retention.readers import Reader
from actorproc.spark.options import settings_as_options
from actorproc.spark.target import parse_write_options
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore

S3 = Settings.load(s3_endpoint="http://127.0.0.1:9000", s3_access_key="user", s3_secret_key="hidden")


def asked(**options: Any) -> SparkArguments:
    given: dict[str, Any] = {
        "function": "app:late", "name": "Delays", "container": "state", "checkpoint": "/spark/c", "to": "console",
        "path": None, "mode": None, "options": {}, "trigger": "10s", "max_rows": None, "max_files": None, "columns": None,
        "native": False, "master": None, "remote": None, "packages": [], "conf": {}, "max_failures": 10,
        "stop_within": "30s", "wait": "0s",
    }  # fmt: skip
    return SparkArguments(**{**given, **options})


def urls(ask: SparkArguments) -> dict[str, str]:
    return _urls(ask, Store(MemoryStore()), S3)


@pytest.mark.parametrize("given", ["s3://bucket/alerts", "s3a://bucket/alerts"])
def test_our_own_sink_gets_its_place_as_we_spell_it_and_brings_no_jars(given: str) -> None:
    ask = asked(to="actorproc", path=given)
    assert urls(ask) == {"checkpoint": "file:///spark/c", "path": "s3://bucket/alerts"}
    assert not any("s3a" in name for name in _session(ask, list(urls(ask).values()), S3).told())
    assert urls(asked(to="parquet", path=given))["path"] == "s3a://bucket/alerts"


def test_our_own_sink_opens_the_log_with_our_settings_unless_its_options_say_otherwise() -> None:
    ask = asked(to="ActorProc", path="s3://bucket/alerts", options={"s3_access_key": "another", "logPartitions": "4"})
    sink = _sink(ask, urls(ask)["path"], settings_as_options(S3))
    target = parse_write_options({"path": "s3://bucket/alerts", **sink.options}, stream=True)
    assert (target.settings.s3_endpoint, target.settings.s3_access_key) == ("http://127.0.0.1:9000", "another")
    assert target.settings.s3_secret_key == S3.s3_secret_key
    assert target.partitions == 4
    assert "hidden" not in f"{sink} {sink!r}"


def test_no_other_sink_and_no_server_is_told_our_settings() -> None:
    ask = asked(to="parquet", path="s3://bucket/table", options={"compression": "zstd"})
    assert _sink(ask, "s3a://bucket/table", settings_as_options(S3)).options == {"compression": "zstd"}
    assert _sink(asked(to="actorproc", path="s3://bucket/alerts"), "s3://bucket/alerts", {}).options == {}


def test_a_log_is_appended_to_and_nothing_else() -> None:
    _check(asked(to="actorproc", path="s3://bucket/alerts", mode="append"))
    with pytest.raises(UsageError, match="--mode 'update' with --to actorproc: a log can only be appended to"):
        _check(asked(to="actorproc", path="s3://bucket/alerts", mode="update"))


@pytest.mark.parametrize(
    ("spec", "name"),
    [("app:delays", "app.delays"), ("größe:table", "gr--e.table"), ("_a:f", "a.f"), (f"{'x' * 200}:f", None)],
)
def test_a_reader_is_named_after_its_function_whatever_that_is_called(spec: str, name: str | None) -> None:
    found = _reader_name(spec)
    assert name is None or found == name
    assert Reader.spark(found, "file:///c").name == found


def test_a_log_without_a_place_is_refused_before_spark_starts() -> None:
    with pytest.raises(UsageError, match="--to actorproc needs --path"):
        _check(asked(to="actorproc"))
