"""The demo's folder: what is where in it, emptied only if it is the demo's own."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
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
"""


@dataclass(frozen=True, slots=True)
class Places:
    """What is where in the folder."""

    folder: Path

    @property
    def marker(self) -> Path:
        """Says that the folder is the demo's, to be emptied, and how many events were sent."""
        return self.folder / "demo.json"

    @property
    def config(self) -> Path:
        return self.folder / "actorproc.toml"

    @property
    def log(self) -> Path:
        return self.folder / "events"

    @property
    def container(self) -> Path:
        return self.folder / "state"

    @property
    def output(self) -> Path:
        return self.container / PROCESSOR / "output"

    @property
    def dead_letters(self) -> Path:
        return self.container / PROCESSOR / "dead-letters"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    def prepare(self, count: int) -> int:
        """Empty the folder, if it is the demo's own, and note how many events are going to be sent.

        Raises:
            UsageError: it is not.
        """
        if self.folder.exists():
            if not self.marker.is_file() and any(self.folder.iterdir()):
                raise UsageError(
                    f"{self.folder.absolute()} is not the demo's (it has no {self.marker.name}), "
                    "so it is not emptied: move it away, or run the demo elsewhere"
                )
            shutil.rmtree(self.folder)
        self.logs.mkdir(parents=True)
        self.marker.write_text(json.dumps({"events": count, "partitions": PARTITIONS}) + "\n")
        self.config.write_text(SETTINGS)
        return count

    def events(self) -> int:
        """How many events the run that is there has sent.

        Raises:
            UsageError: there is no run.
        """
        try:
            return int(json.loads(self.marker.read_text())["events"])
        except (OSError, ValueError, KeyError, TypeError):
            raise UsageError(f"there is no demo in {self.folder.absolute()} to check: actorproc demo") from None

    @property
    def partitions(self) -> list[str]:
        return [str(number) for number in range(PARTITIONS)]

    def contents(self) -> list[tuple[str, str]]:
        """(path, what it is), for people."""
        return [
            (f"{self.log}/", f"the log: {PARTITIONS} partitions, append-only"),
            (f"{self.output}/", "what the handler emitted: the Parquet dataset"),
            (f"{self.dead_letters}/", "records that failed, with their cause: JSON lines"),
            (f"{self.container / PROCESSOR}/", "beside these two: checkpoints, group.json with the leases"),
            (str(self.config), "the hosts' settings"),
            (f"{self.logs}/", "what each host and Spark logged"),
            (str(self.marker), "how many events were sent; says that the folder is the demo's"),
        ]

    def next_steps(self) -> list[tuple[str, str]]:
        """(command, what it shows), each as it can be typed here."""
        actorproc, python = (_typed(Path(sys.executable).parent / name) for name in ("actorproc", "python"))
        of = f"--name {PROCESSOR} --container file://{self.container}"
        return [
            (f"{actorproc} status {of} --source file://{self.log}", "who ran what, how far it is, what lags"),
            (f"{actorproc} output {of} --limit 5", "the rows that were committed last"),
            (f"{actorproc} dead-letters list {of} --limit 5", "flights that never left"),
            (
                f'{python} -c "from pyspark.sql import SparkSession; SparkSession.builder.getOrCreate()'
                f".read.parquet('{self.output}').groupBy('origin').avg('minutes').show()\"",
                "Spark on the dataset as it is",
            ),
            (
                f"duckdb -c \"select origin, avg(minutes) from '{self.output}/*/*.parquet' group by origin\"",  # noqa: S608
                "DuckDB, where it is installed, as well",
            ),
            (
                f"{actorproc} serve actorproc.demo.handler:Delays --name again --source file://{self.log} "
                f"--container file://{self.container} --until-end",
                "the same once more, on one host, as fast as it goes",
            ),
            (
                f"rm {self.output}/partition=0/{0:020d}.parquet; {actorproc} demo --check",
                "lose a file, and the check notices",
            ),
        ]


def _typed(program: Path) -> str:
    """The program as one would type it: by its name where PATH finds this very one."""
    if shutil.which(program.name) == str(program):
        return program.name
    below = os.path.relpath(program)
    return str(program) if below.startswith("..") else below
