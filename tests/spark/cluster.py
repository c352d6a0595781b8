"""A standalone Spark cluster and a Spark Connect server on this machine, on free loopback ports.

with cluster(folder) as master:
    session = new_session(master)      # or: actorproc spark ... --master MASTER
with connect_server(folder) as remote:
    ...                                # actorproc spark ... --remote REMOTE
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from tests.servers import free_ports, running

_ROOT = Path(__file__).parents[2]
_HOME = Path(pyspark.__file__).parent
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # they hardly do anything: start quickly, stay small
_ENV = {
    "SPARK_HOME": str(_HOME),
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_DAEMON_MEMORY": "256m",
    "SPARK_DAEMON_JAVA_OPTS": _JAVA,
}
_CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"
_REGISTER = 120.0


@contextmanager
def cluster(folder: Path, workers: int = 2, cores: int = 1, memory: str = "1g") -> Iterator[str]:
    """The URL of its master, once all workers have registered. Logs of master, workers and executors stay in `folder`.

    Everything ends with the block, executors included, and with this process, however it ends.

    Args:
        cores, memory: of each worker; an executor takes 1 GiB unless `spark.executor.memory` says otherwise.
    """
    with ExitStack() as stack:

        def start(name: str, *arguments: str) -> str:
            """Its endpoint."""
            own = folder / name
            own.mkdir(parents=True)

            def command() -> tuple[list[str], str, str]:
                port, ui = map(str, free_ports(2))
                host = ["--host", "127.0.0.1", "--port", port, "--webui-port", ui]
                return (
                    [str(_HOME / "bin" / "spark-class"), *arguments[:1], *host, *arguments[1:]],
                    f"{port} {ui}",
                    f"http://127.0.0.1:{ui}/json/",
                )

            return stack.enter_context(running(name, command, own, _ENV))

        port, ui = start("master", "org.apache.spark.deploy.master.Master").split()
        master = f"spark://127.0.0.1:{port}"
        for number in range(workers):
            work = folder / f"worker-{number}" / "work"
            start(
                f"worker-{number}", "org.apache.spark.deploy.worker.Worker", master,
                "--cores", str(cores), "--memory", memory, "--work-dir", str(work),
            )  # fmt: skip
        _until_registered(f"http://127.0.0.1:{ui}/json/", workers)
        yield master


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """The URL of a Spark Connect server with two cores, whose tasks find the checkout."""
    env = {
        "SPARK_HOME": str(_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")])),
    }

    def command() -> tuple[list[str], str, str]:
        port, ui = free_ports(2)
        conf = {
            "spark.master": "local[2,4]",
            "spark.connect.grpc.binding.port": port,
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": _JAVA,
            "spark.sql.shuffle.partitions": 1,
            "spark.ui.port": ui,
        }
        options = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
        return (
            [str(_HOME / "bin" / "spark-submit"), *options, "--class", _CONNECT, "spark-internal"],
            f"sc://127.0.0.1:{port}",
            f"http://127.0.0.1:{ui}/connect/",
        )

    folder.mkdir(parents=True, exist_ok=True)
    with running("Spark Connect", command, folder, env) as remote:
        yield remote


def _until_registered(status: str, workers: int) -> None:
    deadline = time.monotonic() + _REGISTER
    while time.monotonic() < deadline:
        with urllib.request.urlopen(status, timeout=10) as reply:
            if json.load(reply)["aliveworkers"] == workers:
                return
        time.sleep(0.1)
    raise TimeoutError(f"not all of {workers} Spark workers registered within {_REGISTER:g} s; see {status}")
