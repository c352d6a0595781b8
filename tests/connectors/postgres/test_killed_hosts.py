"""Hosts and the server are killed while rows go to PostgreSQL: each committed row is there once."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

import psycopg
import pytest

from tests.connectors.postgres.server import Postgres
from tests.sinks.killed_hosts import deliver_the_rest, feed, host, pause

pytestmark = [pytest.mark.servers, pytest.mark.long]

EVENTS = 60_000


def rows(server: Postgres) -> object:
    """How many, how many different ones, the lowest and the greatest."""
    with psycopg.connect(server.url) as connection:
        return connection.execute("SELECT count(*), count(DISTINCT n), min(n), max(n) FROM copies").fetchone()


def test_each_committed_row_is_in_the_table_once(server: Postgres, tmp_path: Path) -> None:
    sink = ["--sink", f"pg={server.url}", "--sink-option", "pg.table=copies"]
    feed(tmp_path, EVENTS)
    random, counts = Random(7), []
    for round_ in range(6):
        with host(tmp_path, sink, "--host", "a"), host(tmp_path, sink, "--host", "b") as other:
            time.sleep(random.uniform(1.5, 3.5))
            if round_ % 3 == 1:
                server.kill()
                time.sleep(0.5)
                server.start()
            if round_ % 3 == 2:
                pause(other)
        counts.append(rows(server))
    assert len(set(counts)) > 3, counts  # rows arrived in most rounds
    deliver_the_rest(tmp_path, sink)
    assert rows(server) == (EVENTS, EVENTS, 0, EVENTS - 1)
