"""The commands of README and pages, run by a shell in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import orjson
import pytest
from confluent_kafka.cimpl import NewTopic
from pyarrow.dataset import dataset

from tests.connectors.kafka.server import kafka
from tests.connectors.kafka.topics import Topic
from tests.connectors.postgres.server import postgres
from tests.servers import REQUIRED, Unavailable

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


class Shell:
    """bash in an empty folder, with `actorproc` and `python` at hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "trial"
        self.folder.mkdir()
        commands = {"actorproc": f"{sys.executable} -m actorproc", "python": sys.executable}
        for name, what in commands.items():
            command = folder / "bin" / name
            command.parent.mkdir(exist_ok=True)
            command.write_text(f'#!/bin/sh\nexec {what} "$@"\n')
            command.chmod(0o755)
        self._environment = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}

    def run(self, script: str) -> str:
        """The output of a script."""
        shell = ["bash", "-c", f"set -em\n{script}"]  # `set -m`: jobs and %1, as at a prompt
        done = subprocess.run(
            shell, cwd=self.folder, env=self._environment, capture_output=True, text=True, timeout=500, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def commands(page: str, heading: str) -> list[str]:
    """The blocks of shell commands in a section."""
    section = page.partition(f"\n## {heading}")[2].partition("\n## ")[0]
    return re.findall(r"```sh\n(.*?)```", section, re.DOTALL)


@pytest.mark.slow
def test_the_commands_of_the_readme_print_the_promised_output(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    (shell.folder / "app.py").write_text(re.findall(r"```python\n(# app\.py\n.*?)```", README, re.DOTALL)[0])
    first, service = commands(README, "Try a handler of your own")
    run = shell.run
    out = run(first)
    assert "4 records handled, 3 rows and 1 dead letter committed" in out
    assert "see why: actorproc dead-letters list --name Delays --container state" in out
    assert out.count("KeyError") == 1
    assert "20,000 events appended to events" in run(service.replace("--rate 1000", "--rate 4000"))
    ended = run("actorproc serve app:Delays --source events --container state --until-end")
    assert "0 dead letters committed" in ended
    rows = [orjson.loads(line) for line in run("actorproc output --name Delays --container state --json").splitlines()]
    assert len(rows) == len({(row["_partition"], row["_sequence"]) for row in rows}) == 20_003


@pytest.mark.slow
@pytest.mark.servers
def test_kafka_to_postgres_and_delta_works_as_written_with_a_killed_host(tmp_path: Path) -> None:
    folder = Path(sysconfig.get_paths()["purelib"]) / "duckdb_extension_delta"
    extension = next(folder.rglob("*.duckdb_extension"))
    shell = Shell(tmp_path)
    (shell.folder / "app.py").write_text(re.findall(r"```python\n(# app\.py\n.*?)```", README, re.DOTALL)[0])
    (tmp_path / "kafka").mkdir()
    try:
        with kafka(tmp_path / "kafka") as broker, postgres() as database:
            Topic(broker).create(NewTopic("flights", 4, 1))
            first, second = (
                script.replace("localhost:9092", broker.address)
                .replace("postgresql://postgres@localhost/postgres", database.url)
                .replace("INSTALL delta; LOAD delta", f"LOAD '{extension}'")
                for script in commands(README, "From Kafka to a database and a table")
            )
            printed = shell.run(first + second)
    except Unavailable as why:
        if REQUIRED:
            raise
        pytest.skip(str(why))
    assert "sink db: postgresql://" in printed
    assert printed.count("(50000, 50000)") == 2


@pytest.mark.slow
def test_the_tutorial_works_as_written(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "tutorial.md").read_text()
    shell = Shell(tmp_path)
    app, read = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (shell.folder / "app.py").write_text(app)
    (shell.folder / "read.py").write_text(read)
    (shell.folder / "actorproc.toml").write_text(
        'lease_expiration_interval = "5s"\nlease_renew_interval = "1s"\nlease_acquire_interval = "1s"\n'
    )
    shell.run(commands(page, "3. Make a stream")[0])
    assert "1,001 records handled, 1,000 rows and 1 dead letter committed" in shell.run(
        commands(page, "4. Process it")[0]
    )
    assert "KeyError" in shell.run(commands(page, "4. Process it")[1])
    assert shell.run("python read.py") == "1000 500500.0\n"
    shell.run(commands(page, "6. Run it as a service")[0])
    assert shell.run("python read.py").startswith("4000 ")


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_the_commands_of_the_spark_page_make_a_windowed_table(
    tmp_path: Path,
) -> None:
    pytest.importorskip("pyspark.sql", reason="pyspark is not installed")
    shell = Shell(tmp_path)

    def table() -> list[tuple[int, str, int]]:
        found = dataset(shell.folder / "tables" / "hours").to_table().to_pylist()
        return sorted((row["start"].hour, row["origin"], row["flights"]) for row in found)

    def hours(number: int) -> list[tuple[int, str, int]]:
        return [(hour, origin, 30) for hour in range(number) for origin in ("EWR", "JFK")]

    install, first, look, later = commands((ROOT / "docs" / "spark.md").read_text(), "From nothing to a windowed table")
    assert install.startswith("pip install ")
    shell.run(first)
    assert table() == hours(7)
    shown = shell.run(look)
    assert "|2013-01-01 06:00:00|   JFK|     30|" in shown
    assert "|     DL|" in shown
    function = re.findall(r"flights\(\) {\n.*?\n}\n", first, re.DOTALL)[0]  # which a prompt still knows
    shell.run(function + later)
    assert table() == hours(17)
