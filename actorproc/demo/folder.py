"""The demo's folder and its contents. It is emptied only if the demo made it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from actorproc.errors import UsageError

PROCESSOR = "delays"
PARTITIONS = 8

SETTINGS = """\
# The timers of the demo: short, so that a kill is noticed within seconds. The defaults suit a bucket (see the docs).
lease_renew_interval = "500ms"
lease_acquire_interval = "700ms"
lease_expiration_interval = "2s"
rebalance_delay = "1s"
max_handoff_time = "10s"
commit_interval = "1s"
poll_interval = "200ms"
# On the days of the snowstorm most flights of a partition were cancelled, which is no reason to stop it.
dead_letter_limit = 1

# The output is a Delta table, too: its files, named by a log in the same folder.
[sinks.table]
url = "delta"
interval = 2
"""


class DemoFolder:
    """The folder; it holds the log, the container, settings and logs of one run."""

    partitions = tuple(map(str, range(PARTITIONS)))

    def __init__(self, path: Path) -> None:
        self.path = path
        # Marks the folder as the demo's, which may be emptied, with the number of events sent.
        self.marker = path / "demo.json"
        self.config = path / "actorproc.toml"
        self.log = path / "events"
        self.container = path / "state"
        self.output = self.container / PROCESSOR / "output"
        self.dead_letters = self.container / PROCESSOR / "dead-letters"
        self.logs = path / "logs"

    def prepare(self, count: int) -> int:
        """Empty the folder, if the demo made it, and store the number of events.

        Raises:
            UsageError: the folder is not the demo's.
        """
        if self.path.exists():
            if not self.marker.is_file() and any(self.path.iterdir()):
                raise UsageError(
                    f"{self.path.absolute()} is not the demo's (it has no {self.marker.name}), "
                    "so it is not emptied: move it away, or run the demo elsewhere"
                )
            shutil.rmtree(self.path)
        self.logs.mkdir(parents=True)
        self.marker.write_text(json.dumps({"events": count, "partitions": PARTITIONS}) + "\n")
        self.config.write_text(SETTINGS)
        return count

    def events(self) -> int:
        """Number of events that the last run sent.

        Raises:
            UsageError: there was no run.
        """
        try:
            return int(json.loads(self.marker.read_text())["events"])
        except (OSError, ValueError, KeyError, TypeError):
            raise UsageError(f"there is no demo in {self.path.absolute()} to check: actorproc demo") from None

    def contents(self) -> list[tuple[str, str]]:
        """(path, description) of each part."""
        return [
            (f"{self.log}/", f"the log: {PARTITIONS} partitions, append-only"),
            (f"{self.output}/", "output: a Parquet dataset, and a Delta table"),
            (f"{self.dead_letters}/", "records that failed, with their errors: JSON lines"),
            (f"{self.container / PROCESSOR}/", "also here: checkpoints, and group.json with the leases"),
            (str(self.config), "the hosts' settings"),
            (f"{self.logs}/", "logs of the hosts and of Spark"),
            (str(self.marker), "number of events sent; marks the folder as the demo's"),
        ]

    def next_steps(self) -> list[tuple[str, str]]:
        """(command, description), each as it can be typed here."""
        actorproc, python = (_typed(Path(sys.executable).parent / name) for name in ("actorproc", "python"))
        of = f"--name {PROCESSOR} --container file://{self.container}"
        return [
            (f"{actorproc} status {of} --source file://{self.log}", "hosts, partitions and lag"),
            (f"{actorproc} output {of}", "the newest rows"),
            (f"{actorproc} dead-letters list {of} --limit 5", "flights that never left"),
            (
                f'{python} -c "from pyspark.sql import SparkSession; SparkSession.builder.getOrCreate()'
                f".read.parquet('{self.output}').groupBy('origin').avg('minutes').show()\"",
                "Spark on the dataset",
            ),
            (
                f"duckdb -c \"select origin, avg(minutes) from '{self.output}/partition=*/*.parquet' group by origin\"",  # noqa: S608
                "DuckDB on the dataset, if it is installed",
            ),
            (
                f"{actorproc} serve actorproc.demo.handler:Delays --name again --source file://{self.log} "
                f"--container file://{self.container} --until-end",
                "the same on one host, at full speed",
            ),
            (
                f"rm {self.output}/partition=0/{0:020d}.parquet; {actorproc} demo --check",
                "lose a file: the check notices",
            ),
        ]


def _typed(program: Path) -> str:
    """The program by its name if PATH finds it, otherwise by its path."""
    if shutil.which(program.name) == str(program):
        return program.name
    below = os.path.relpath(program)
    return str(program) if below.startswith("..") else below
