"""Committers of a table as processes, two at once, that are killed around their commits, lose requests and replies, and
meet other systems' writes: each row is in the table once, and each file of a version that a reader holds is there."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, ValidationException
from pyiceberg.table import Table

from tests.connectors.iceberg.catalogs import World
from tests.connectors.iceberg.test_catalogs import catalog_world
from tests.connectors.iceberg.test_strangers import append
from tests.spark.conftest import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
DEATHS, TRANSACTIONS = 8, 10


class Committers:
    """Two processes; one that has died is started again."""

    def __init__(self, world: World, folder: Path) -> None:
        self._given = json.dumps({"container": world.container, "uri": world.uri, "options": dict(world.options)})
        self._path = folder / "committers.log"
        self._log = self._path.open("ab")
        self._running = list[subprocess.Popen[bytes]]()
        self.started = 0

    def keep(self) -> None:
        self._running = [process for process in self._running if process.poll() is None]
        while len(self._running) < 2:
            self.started += 1
            line = [sys.executable, "-m", "tests.connectors.iceberg.committing", self._given, str(self.started)]
            self._running.append(subprocess.Popen(line, cwd=ROOT, stdout=self._log, stderr=self._log))

    def strike(self, random: Random) -> None:
        """Kill one of them, wherever it is."""
        random.choice(self._running).kill()

    @property
    def landed(self) -> int:
        """Transactions."""
        return self._path.read_text().count("landed")

    def end(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()
        self._log.close()


def be_a_stranger(world: World, random: Random) -> int:
    """What pyiceberg does to the table: it appends, or rewrites all. The number of rows that it has added."""
    try:
        if random.random() < 0.5:
            append(world, 1)
            return 1
        table = world.table()
        table.overwrite(table.scan().to_arrow())
    except (CommitFailedException, CommitStateUnknownException, ValidationException):
        pass  # others were first
    return 0


def read(table: Table) -> int:
    """A reader that holds this version."""
    return int(table.scan().to_arrow().num_rows)


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "rest"])
async def test_each_row_is_in_the_table_once_whoever_dies(kind: str, tmp_path: Path) -> None:
    random = Random(kind)
    with catalog_world(kind, tmp_path) as world:
        await world.process(20)
        committers, foreign, held = Committers(world, tmp_path), 0, [world.table()]
        try:
            while committers.started < DEATHS or committers.landed < TRANSACTIONS:
                committers.keep()
                await world.process(random.randrange(1, 40), max_batch_records=5, sinks={})
                if random.random() < 0.3:
                    committers.strike(random)
                if random.random() < 0.3:
                    foreign += be_a_stranger(world, random)
                if random.random() < 0.1:
                    await world.compact()
                held.append(world.table())
                time.sleep(random.uniform(0.3, 1))
        finally:
            committers.end()
        await world.process(10)
        assert world.is_exact(beside=foreign)
        assert [read(table) for table in held] == sorted(read(table) for table in held)
