"""`actorproc spark` and `serve --spark` as processes: on one machine, a cluster and a server; stopped and killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pyarrow.dataset
import pytest

from tests.cli.test_flow import event, gone, wait_for
from tests.servers import S3Server
from tests.spark.cluster import cluster, connect_server
from tests.spark.committing import Fleet
from tests.spark.conftest import ROOT
from tests.spark.sink import Sink

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

START = 240.0  # seconds that Spark may take to come up and do its first micro-batch, on a busy machine

QUERIES = """
import time
from pathlib import Path

from pyspark.sql.functions import udf

from helper_app import double
from tests.spark.sink import Sink

HERE = Path(__file__).parent

def files(rows):
    def pause(batch):
        time.sleep(float((HERE / "pause").read_text()))

    return rows.writeStream.foreachBatch(Sink(HERE / "out", pause)._write)

@udf("long")  # needs a session to be imported
def doubled(n):
    return double(n)

def table(rows):
    return rows.select("_partition", "_sequence", doubled("n").alias("n"))
"""

HANDLER = """
from actorproc import PartitionHandler

class Numbers(PartitionHandler):
    output_schema = "n long"

    async def process(self, batch, ctx):
        for record in batch:
            ctx.emit(record, {"n": record.json()["n"]})
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "queries_app.py").write_text(QUERIES)
    (tmp_path / "helper_app.py").write_text("def double(n):\n    return 2 * n\n")
    (tmp_path / "handler_app.py").write_text(HANDLER)
    (tmp_path / "pause").write_text("0")
    return tmp_path


TABLE = ["--to", "parquet", "--path", "table"]
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}


def spark(function: str, *options: object, container: str = "state", checkpoint: str = "spark/c") -> list[str]:
    command = [sys.executable, "-m", "actorproc", "spark", f"queries_app:{function}", "--name", "numbers"]
    return [*command, "--container", container, "--checkpoint", checkpoint, *map(str, options)]


def ended(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=600, check=False)


@contextmanager
def started(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as stderr:
        process = subprocess.Popen(command, env=ENVIRONMENT, stderr=stderr, stdout=subprocess.DEVNULL)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def java_of(pid: int) -> int:
    """The Java that a thread of this process started."""
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(child) for thread in threads for child in thread.read_text().split()]
    (java,) = [child for child in children if Path(f"/proc/{child}/comm").read_text() == "java\n"]
    return java


async def test_a_query_survives_a_stop_and_the_death_of_java(tmp_path: Path) -> None:
    fleet, log = Fleet("state"), tmp_path / "log"
    await fleet.commit(p0=100)
    (tmp_path / "pause").write_text("3")
    with started(spark("files", "--max-files", 1, "--trigger", "1s"), log) as process:
        wait_for(lambda: event(log, "spark.progress"), "a micro-batch is done", START)
        java = java_of(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        wait_for(lambda: gone(java), "its Java ends with it")
    assert event(log, "spark.stopping", signal="SIGTERM")
    assert not event(log, "spark.batch_cut_off")
    stopped = len(Sink(tmp_path / "out").batches())
    committed = len(list((tmp_path / "spark/c/commits").glob("[0-9]*")))
    assert 0 < stopped == committed < 10, "each micro-batch that began has ended"

    log.unlink()
    with started(spark("files", "--max-files", 1, "--trigger", "1s"), log) as process:
        wait_for(lambda: event(log, "spark.progress"), "it goes on", START)
        os.kill(java_of(process.pid), signal.SIGKILL)
        assert process.wait(60) == 1
        assert "Spark's Java process, which runs queries_app:files, has exited" in log.read_text()
    lag = event(log, "spark.progress")[0]
    assert lag["lag_rows"] > 0
    assert lag["lag_seconds"] > 0

    (tmp_path / "pause").write_text("0")
    done = ended(spark("files", "--trigger", "available-now"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("queries_app:files: ")
    readers = orjson.loads((tmp_path / "state/numbers/readers.json").read_bytes())["readers"]
    reader = {"kind": "spark", "url": f"file://{tmp_path}/spark/c", "query": "queries_app:files"}
    assert readers == {"queries_app.files": reader}
    assert Sink(tmp_path / "out").rows() == fleet.expected()


async def test_cluster_tasks_find_the_users_modules_and_python(tmp_path: Path) -> None:
    fleet = Fleet("state")
    await fleet.commit(p0=40, p1=30)
    with cluster(tmp_path / "cluster") as master:
        there = ["--master", master, "--conf", "spark.executor.memory=700m"]
        done = ended(spark("table", *there, "--trigger", "available-now", "--max-files", 3, *TABLE))
    assert done.returncode == 0, done.stderr
    rows = pyarrow.dataset.dataset("table", exclude_invalid_files=True).to_table().to_pylist()
    found = [(row["_partition"], row["_sequence"], row["n"]) for row in rows]
    assert sorted(found) == sorted((partition, n, 2 * n) for partition, n, _ in fleet.expected())


@pytest.mark.parametrize("native", [False, True], ids=["data source", "native"])
async def test_a_query_on_s3_continues_after_a_kill(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    for name, value in s3_server.settings.items():
        monkeypatch.setitem(ENVIRONMENT, f"ACTORPROC_{name.upper()}", value)
    container, checkpoint = await s3_server.new_url(), f"{await s3_server.new_url()}/c"
    fleet, log, sink = Fleet(container, s3_server.settings), tmp_path / "log", Sink(tmp_path / "out")
    await fleet.commit(p0=60, p1=30)
    query = spark("files", *(["--native"] if native else []), container=container, checkpoint=checkpoint)
    with started([*query, "--max-files", "1", "--trigger", "500ms"], log) as process:
        wait_for(lambda: event(log, "spark.progress"), "a micro-batch is done", START)
        java = java_of(process.pid)
        process.kill()
        wait_for(lambda: gone(java), "its Java ends with it")
    assert 0 < len(sink.batches()) < 9
    await fleet.commit(p0=20, p1=10)
    done = ended([*query, "--trigger", "available-now"])
    assert done.returncode == 0, done.stderr
    assert sink.rows() == fleet.expected()


async def test_a_query_continues_on_a_restarted_connect_server(tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="Spark Connect: install the extra 'connect'")
    fleet, log, sink = Fleet("state"), tmp_path / "log", Sink(tmp_path / "out")
    await fleet.commit(p0=40)
    with connect_server(tmp_path / "server") as remote:
        with started(spark("files", "--remote", remote, "--trigger", "1s"), log) as process:
            wait_for(lambda: event(log, "spark.progress"), "a micro-batch is done", START)
            assert sink.rows() == fleet.expected()
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        await fleet.commit(p0=20, p1=10)
        done = ended(spark("files", "--remote", remote, "--trigger", "available-now"))
        assert done.returncode == 0, done.stderr
    assert sink.rows() == fleet.expected()


QUICK = ["--set", "commit_interval=200ms", "--set", "lease_acquire_interval=500ms", "--set", "rebalance_delay=500ms"]


def produce(first: int, count: int) -> None:
    lines = b"".join(orjson.dumps({"n": n}) + b"\n" for n in range(first, first + count))
    command = [sys.executable, "-m", "actorproc", "produce", "--log", "events", "--partitions", "2", "-"]
    subprocess.run(command, input=lines, env=ENVIRONMENT, check=True, capture_output=True, timeout=120)


def serve(*options: str) -> list[str]:
    command = [sys.executable, "-m", "actorproc", "serve", "handler_app:Numbers", "--source", "events"]
    query = ["--spark", "queries_app:files --trigger 1s", "--spark-checkpoint", "spark/c"]
    return [*command, "--container", "state", "--name", "numbers", "--host", "h", *query, *QUICK, *options]


def numbers(folder: Path) -> list[int]:
    return sorted(n for _, _, n in Sink(folder / "out").rows())


def test_serve_restarts_its_query_and_stops_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    produce(0, 100)
    with started(serve("--workers", "2"), log) as process:
        wait_for(lambda: event(log, "spark.progress"), "a micro-batch is done", START)
        assert len(event(log, "worker.started")) == 3
        wait_for(lambda: numbers(tmp_path) == list(range(100)), "all rows are there", START)
        pid = event(log, "worker.started", host="h-spark")[0]["pid"]
        java = java_of(pid)
        os.kill(pid, signal.SIGKILL)
        assert (
            wait_for(lambda: event(log, "worker.died", host="h-spark"), "its death is noticed")[0]["exit"] == "SIGKILL"
        )
        wait_for(lambda: gone(java), "its Java ends with it")
        produce(100, 50)
        wait_for(lambda: numbers(tmp_path) == list(range(150)), "it goes on", START)
        pids = [line["pid"] for line in event(log, "worker.started")]
        pids.append(java_of(pids[-1]))
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
        wait_for(lambda: all(map(gone, pids)), "nothing is left")


def test_serve_until_end_finishes_the_query(tmp_path: Path) -> None:
    produce(0, 50)
    done = ended(serve("--until-end"))
    assert done.returncode == 0, done.stderr
    assert numbers(tmp_path) == list(range(50))
