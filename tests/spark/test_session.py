"""Sessions, their options, URLs, and Spark's errors translated. Without Spark."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j import clientserver
from pyspark.errors import PySparkException

import actorproc.spark.session
from actorproc.config.settings import Settings
from actorproc.errors import HandlerDefinitionError, QueryFailed, RecordsLost, UsageError
from actorproc.spark.errors import shorten, translate_error
from actorproc.spark.hadoop import check_outside, spark_url
from actorproc.spark.session import ConnectSession, Session
from actorproc.spark.session_options import session_options

ROOT = Path(__file__).parents[2]
S3 = Settings.load(s3_endpoint="http://127.0.0.1:9000", s3_access_key="user", s3_secret_key="hidden")


def options(master: str = "local[3,4]", **how: object) -> dict[str, str]:
    return session_options(master, app="test", **how)  # type: ignore[arg-type]


def test_a_local_session_has_one_shuffle_partition_per_core() -> None:
    told = options()
    assert told["spark.sql.shuffle.partitions"] == "3"
    assert told["spark.driver.host"] == "127.0.0.1"
    assert options("local[*]")["spark.sql.shuffle.partitions"] == str(os.cpu_count())


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("local", "local[1,4]"), ("local[3]", "local[3,4]"), ("local[*]", "local[*,4]"), ("local[3,1]", "local[3,1]"),
        ("local[*, 2]", "local[*, 2]"), ("local-cluster[2,1,1024]", "local-cluster[2,1,1024]"), ("yarn", "yarn"),
        ("spark://a:7077,b:7077", "spark://a:7077,b:7077"), ("k8s://https://host:443", "k8s://https://host:443"),
    ],
)  # fmt: skip
def test_a_local_task_gets_four_tries_by_default(given: str, told: str) -> None:
    assert options(given)["spark.master"] == told


def test_a_master_that_does_not_answer_is_an_error_in_one_line() -> None:
    class Dead(Session):
        def _start(self) -> Any:
            raise PySparkException("Cannot call methods on a stopped SparkContext.")

    with pytest.raises(QueryFailed, match="spark://a:1: no Spark master of this version answers there"):
        Dead("spark://a:1", {}).open()


def test_executors_get_the_python_path_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    told = options("spark://10.0.0.7:7077")
    assert (
        told["spark.executorEnv.PYTHONPATH"].split(os.pathsep)[:2] == list(dict.fromkeys([os.getcwd(), str(ROOT)]))[:2]
    )
    assert "spark.driver.host" not in told
    assert "spark.sql.shuffle.partitions" not in told
    assert options("spark://127.0.0.1:7077")["spark.driver.host"] == "127.0.0.1"


def test_arrow_does_not_check_bounds_on_driver_and_executors() -> None:
    flag = "-Darrow.enable_unsafe_memory_access=true"
    assert flag in options()["spark.driver.extraJavaOptions"].split()
    assert flag in options("spark://10.0.0.7:7077")["spark.executor.extraJavaOptions"].split()


def test_conf_overrides_our_options() -> None:
    assert (
        options(conf={"spark.sql.session.timeZone": "Europe/Berlin"})["spark.sql.session.timeZone"] == "Europe/Berlin"
    )


def test_s3_brings_jars_and_keys_and_keys_are_redacted() -> None:
    told = options(urls=["s3a://bucket/checkpoint"], packages=["io.delta:delta:1"], settings=S3)
    packages = told["spark.jars.packages"].split(",")
    assert packages[0] == "io.delta:delta:1"
    assert packages[1].startswith("org.apache.hadoop:hadoop-aws:3.")
    assert told["spark.hadoop.fs.s3a.endpoint"] == "http://127.0.0.1:9000"
    assert told["spark.hadoop.fs.s3a.secret.key"] == "hidden"
    assert "hidden" not in str(ConnectSession("sc://host", told).description())
    assert (
        ConnectSession("sc://host:15002/;user_id=me;token=hidden;x=1", {}).master
        == "sc://host:15002/;user_id=me;token=***;x=1"
    )
    shown = Session("local", told).description()
    assert shown["spark.hadoop.fs.s3a.secret.key"] == shown["spark.hadoop.fs.s3a.access.key"] == "***"
    assert "hidden" not in str(shown)
    conf = {
        "fs.azure.account.key.x.net": "hidden", "ssl.private.key": "hidden", "spark.sql.catalog.c.credential": "hidden",
        "spark.driver.extraJavaOptions": "-Djavax.net.ssl.trustStorePassword=hidden -Dx=shown",
    }  # fmt: skip
    shown = Session("local", options(conf=conf)).description()
    assert "hidden" not in str(shown)
    assert shown["spark.driver.extraJavaOptions"] == "-Djavax.net.ssl.trustStorePassword=*** -Dx=shown"
    assert not any("s3a" in name for name in options(urls=["file:///checkpoint"], settings=S3))


@pytest.mark.parametrize(
    ("given", "as_spark_has_it"),
    [
        ("/data/c", "file:///data/c"),
        ("file:///data/c", "file:///data/c"),
        ("s3://bucket/c", "s3a://bucket/c"),
        ("s3a://bucket/c", "s3a://bucket/c"),
        ("hdfs://host/c", "hdfs://host/c"),
        ("abfss://files@account.dfs.core.windows.net/c", "abfss://files@account.dfs.core.windows.net/c"),
    ],
)
def test_urls_are_given_to_spark_in_its_spelling(given: str, as_spark_has_it: str) -> None:
    assert spark_url(given, S3) == as_spark_has_it


def test_a_relative_path_is_below_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert spark_url("spark/c", S3) == spark_url("file://spark/c", S3) == f"file://{tmp_path}/spark/c"


@pytest.mark.parametrize(
    ("url", "container"),
    [
        ("/data/state", "file:///data/state"),
        ("/data/state/", "file:///data/state"),
        ("/data/state/Delays", "file:///data/state"),
        ("/data/other/../state/Delays/output/x", "file:///data/state"),
        ("s3a://bucket/state/Delays/output/x", "s3://bucket/state"),
        ("/data", "file:///data/state"),
    ],
)
def test_a_checkpoint_inside_the_processors_folder_is_refused(url: str, container: str) -> None:
    with pytest.raises(
        UsageError,
        match=r"--checkpoint '.*' overlaps the folder of processor Delays at .*Choose a location outside it",
    ):
        check_outside("--checkpoint", url, container, "Delays", S3)


def test_a_link_into_the_processors_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "state")
    with pytest.raises(UsageError, match="overlaps the folder of processor Delays"):
        check_outside("--checkpoint", f"{tmp_path}/link/Delays/c", f"file://{tmp_path}/state", "Delays", S3)


@pytest.mark.parametrize("url", ["/data/state/Delays2", "/data/spark/Delays", "/data/state/spark", "s3://data/state"])
def test_a_checkpoint_beside_the_processors_folder_is_accepted(url: str) -> None:
    check_outside("--checkpoint", url, "file:///data/state", "Delays", S3)


PYTHON = """[STREAM_FAILED] Query [id = 0c6b, runId = 2a23] terminated with exception: \
[PYTHON_EXCEPTION] An exception was \
thrown from the Python worker: Traceback (most recent call last):
  File "/venv/site-packages/pyspark/worker.py", line 3, in main
    process()
  File "/home/me/app.py", line 17, in boom
    if n == 15000: raise ValueError("boom at 15000")
                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
{error}
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = 0c6b, runId = 2a23]
"""


def test_a_python_traceback_is_cut_to_the_users_frames() -> None:
    assert shorten(PYTHON.format(error="ValueError: boom at 15000")) == (
        'ValueError: boom at 15000\n  File "/home/me/app.py", line 17, in boom\n'
        '    if n == 15000: raise ValueError("boom at 15000")\n                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^'
    )


@pytest.mark.parametrize("folder", ["/home/me/actorproc/examples", "/home/me/pyspark", "/srv/python/app"])
def test_the_users_frames_stay_for_any_name_of_their_folder(folder: str) -> None:
    trace = PYTHON.replace("/home/me", folder).format(error="ValueError: boom")
    assert f'File "{folder}/app.py", line 17, in boom' in shorten(trace)


@pytest.mark.parametrize(
    "file",
    [
        actorproc.__file__,
        "/opt/venv/lib/python3.12/site-packages/actorproc/spark/task_reader.py",
        "/opt/spark/python/lib/pyspark.zip/pyspark/worker.py",
        "/opt/spark/python/lib/py4j-0.10.9.9-src.zip/py4j/clientserver.py",
        "/opt/spark/python/pyspark/worker.py",
    ],
)
def test_frames_of_spark_and_actorproc_are_removed(file: str) -> None:
    assert file not in shorten(
        PYTHON.replace("/venv/site-packages/pyspark/worker.py", file).format(error="ValueError: x")
    )


def test_a_java_error_is_cut_to_its_first_line() -> None:
    failed = "[STREAM_FAILED] Query [id = a, runId = b] terminated with exception: "
    text = f"{failed}Job aborted: no space SQLSTATE: XXKST\n=== x"
    assert shorten(text) == "Job aborted: no space"


@pytest.mark.parametrize(
    ("raised", "kind", "says"),
    [
        (
            "actorproc.errors.UsageError: the checkpoint belongs to another",
            UsageError,
            "^the checkpoint belongs to another$",
        ),
        ("actorproc.errors.RecordsLost: partition 0: number 2", RecordsLost, "^partition 0: number 2$"),
        ("actorproc.errors.SourceError: output is gone", QueryFailed, "^app:f: output is gone$"),
        ("actorproc.errors.StoreUnavailable: s3://b: no answer", QueryFailed, "^app:f: s3://b: no answer$"),
        ("ValueError: boom", QueryFailed, "^app:f: ValueError: boom"),
    ],
)
def test_our_errors_in_sparks_processes_are_raised_again(raised: str, kind: type, says: str) -> None:
    from pyspark.errors import StreamingQueryException

    with pytest.raises(kind, match=says):
        raise translate_error(StreamingQueryException(message=PYTHON.format(error=raised)), "app:f")


def test_an_error_of_the_function_names_its_line() -> None:
    try:
        raise KeyError("nope")
    except KeyError as error:
        told = translate_error(error, "app:f failed")
    assert isinstance(told, HandlerDefinitionError)
    assert "app:f failed: KeyError: 'nope' (in test_an_error" in str(told)


@pytest.mark.parametrize("kind", ["SQL", "DataFrame"])
def test_pyspark_does_not_log_a_refused_query(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    class Opened(Session):
        def _start(self) -> Any:
            return None

    class Refused(PySparkException):
        def getQueryContext(self) -> Any:  # noqa: N802
            context = SimpleNamespace(name=kind)
            return [SimpleNamespace(contextType=lambda: context, callSite=lambda: "app.py:1", fragment=lambda: "where")]

    Opened("local", {}).open()
    Refused("no such column")._log_exception()
    assert capfd.readouterr().err == ""


def test_py4j_does_not_log_that_java_has_exited() -> None:
    def record(path: str) -> logging.LogRecord:
        return logging.LogRecord("root", logging.ERROR, path, 1, "Exception while sending command.", None, None)

    session = Session("local", {})
    session._start = lambda: None  # type: ignore[method-assign,assignment,return-value]
    session.open()
    assert not logging.getLogger().filter(record(clientserver.__file__))
    assert logging.getLogger().filter(record(__file__))


class Remote(ConnectSession):
    """Session of a server that notes each request. A server that is gone fails when a session is returned."""

    def __init__(self, *, gone: bool = False) -> None:
        super().__init__("sc://host", {})
        self.asked: list[object] = []
        self._gone = gone

    def _start(self) -> Any:
        number = len(self.asked)
        self.asked.append(f"start {number}")

        def stop() -> None:
            self.asked.append(f"stop {number}")
            if self._gone:
                raise PySparkException("no answer")

        return SimpleNamespace(client=SimpleNamespace(set_retry_policies=self.asked.append), stop=stop)


def test_a_connect_server_that_never_answers_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("grpc", reason="Spark Connect: install the extra 'connect'")
    monkeypatch.setattr(actorproc.spark.session, "_CONNECT_TIMEOUT", 0.02)
    with pytest.raises(
        QueryFailed, match=r"^no Spark Connect server answers at sc://127\.0\.0\.1:1, tried for 0\.02 s$"
    ):
        ConnectSession("sc://127.0.0.1:1", {}).open()


@pytest.mark.parametrize("url", ["h:15002", "sc://h:x", "sc://h/;token=hidden;a"])
def test_a_malformed_connect_url_is_a_usage_error_without_the_token(url: str) -> None:
    pytest.importorskip("grpc", reason="Spark Connect: install the extra 'connect'")
    with pytest.raises(UsageError, match="write sc://HOST:PORT") as refused:
        ConnectSession(url, {}).open()
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize("gone", [False, True])
def test_reopening_stops_the_old_session_on_the_server(gone: bool) -> None:
    remote = Remote(gone=gone)
    first = remote.open()
    assert remote.reopen() is not first
    assert remote.asked == ["start 0", [], "stop 0", "start 3"], "asked to end once, before there is another"


def test_an_unresponsive_server_does_not_block_a_new_session(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr(actorproc.spark.session, "_CLOSE_TIMEOUT", 0.01)
    remote = Remote()
    remote.open().stop = lambda: answers.wait(60)  # type: ignore[method-assign,assignment]
    remote.reopen()
    assert remote.asked == ["start 0", [], "start 2"]
    answers.set()
