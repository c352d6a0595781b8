"""Secrets never appear among the arguments of a process, which every user of the machine can read."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path

import pytest

from actorproc.spark.session_options import launch_options, session_options
from tests.spark.conftest import ROOT

SECRET = "hunter2-hunter2-hunter2"


@contextmanager
def arguments_seen() -> Iterator[set[bytes]]:
    """The arguments of all processes that run meanwhile."""
    seen: set[bytes] = set()
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.01):
            for process in Path("/proc").glob("[0-9]*"):
                try:
                    seen.add((process / "cmdline").read_bytes())
                except OSError:
                    continue

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield seen
    finally:
        ended.set()
        looking.join()


SESSION = """
from actorproc.config.settings import Settings
from actorproc.spark.hadoop import places
from actorproc.spark.session import Session
from actorproc.spark.session_options import SHORT_LIVED, session_options

given = places(["s3a://bucket"], Settings.load())[0].options
conf = {f"spark.hadoop.{name}": value for name, value in given.items()}
conf |= {"spark.ui.enabled": "false", "spark.sql.catalog.c.uri": "jdbc:x?password=" + given["fs.s3a.secret.key"]}
spark = Session("local[1,1]", session_options("local[1,1]", app="secrets", conf=conf, java=SHORT_LIVED)).open()
print(spark._jsc.hadoopConfiguration().get("fs.s3a.secret.key"))
print(spark.sparkContext.getConf().get("spark.hadoop.fs.s3a.secret.key"))
print(spark.conf.get("spark.sql.catalog.c.uri"))
spark.stop()
"""


@pytest.mark.slow
def test_java_gets_secrets_but_not_as_arguments() -> None:
    environment = {**os.environ, "ACTORPROC_S3_ACCESS_KEY": "me", "ACTORPROC_S3_SECRET_KEY": SECRET}
    with arguments_seen() as seen:
        done = subprocess.run(
            [sys.executable, "-c", SESSION], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
    assert done.stdout.split() == [SECRET, SECRET, f"jdbc:x?password={SECRET}"], done.stderr[-2000:]
    assert any(b"org.apache.spark.deploy.SparkSubmit" in found for found in seen), "Java was seen"
    assert not [found for found in seen if SECRET.encode() in found]


def test_spark_submit_gets_only_the_arguments_that_it_needs() -> None:
    conf = {
        "spark.hadoop.fs.s3a.secret.key": SECRET, "spark.hadoop.fs.azure.account.key.x.net": SECRET,
        "spark.sql.catalog.c.uri": f"jdbc:x?password={SECRET}", "spark.ssl.keyPassword": SECRET,
        "spark.authenticate.secret": SECRET, "spark.kubernetes.authenticate.submission.oauthToken": SECRET,
        "spark.driver.secretary": SECRET, "spark.executorEnv.AWS_SECRET_ACCESS_KEY": SECRET,
        "spark.driver.memory": "1g",
    }  # fmt: skip
    options = session_options("local[2]", app="test", packages=["a:b:1"], conf=conf)
    launched = launch_options(options)
    assert SECRET not in str(launched)
    assert {"spark.master", "spark.jars.packages", "spark.driver.extraJavaOptions", "spark.driver.memory"} <= set(
        launched
    )


def test_workers_get_secrets_by_their_environment(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "from actorproc import PartitionHandler\n"
        "class Keeps(PartitionHandler):\n"
        "    class Options(PartitionHandler.Options):\n"
        "        password: str\n"
        "    output_schema = 'n long'\n"
        "    async def process(self, batch, ctx): pass\n"
    )
    (tmp_path / "actorproc.toml").write_text(f'[source_options]\n"sasl.password" = "{SECRET}"\n')
    names = ["S3_SECRET_KEY", "HTTP_TOKEN", "HTTP_READ_TOKEN", "OPTION_PASSWORD"]
    environment = {
        **os.environ, "ACTORPROC_S3_ACCESS_KEY": "me", **{f"ACTORPROC_{name}": SECRET for name in names},
        "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    command = [sys.executable, "-m", "actorproc", "serve", "app:Keeps", "--source", "kafka://127.0.0.1:1/t",
               "--container", "state", "--workers", "2", "--until-end"]  # fmt: skip
    with arguments_seen() as seen:
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        before = "".join(takewhile(lambda line: "worker.started" not in line, iter(process.stderr.readline, "")))
        threading.Event().wait(0.1)  # the look-out has passed by
        process.terminate()
        rest = process.communicate()[1]
    assert any(b"--host" in found for found in seen), before + rest
    assert not [found for found in seen if SECRET.encode() in found]
