"""Hosts are killed, and the server is stopped: each committed row arrives, and requests repeat with their key."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from tests.connectors.http.receiver import Answer, Request, receiver
from tests.sinks.killed_hosts import deliver_the_rest, feed, host, pause, wait_until

pytestmark = pytest.mark.long

EVENTS = 80_000


def test_each_committed_row_arrives_and_repeats_have_their_key(tmp_path: Path) -> None:
    feed(tmp_path, EVENTS)
    random = Random(7)

    def sometimes(request: Request) -> Answer:
        if (share := random.random()) < 0.02:
            return Answer(is_lost=True)
        return Answer(503, {"Retry-After": "0"}, takes=False) if share < 0.04 else Answer()

    with receiver() as server:
        server.answer = sometimes
        sink = ["--sink", f"hook={server.url}", "--sink-option", "hook.request_rows=50"]
        for round_ in range(6):
            before = len(server.kept)
            with host(tmp_path, sink, "--host", "a"), host(tmp_path, sink, "--host", "b") as other:
                wait_until(lambda: len(server.kept) > before + 10)  # noqa: B023
                time.sleep(random.uniform(0, 1))
                if round_ % 3 == 1:
                    server.stop()
                    time.sleep(1)
                    server.start()
                if round_ % 3 == 2:
                    pause(other)
        deliver_the_rest(tmp_path, sink)
        found = Counter(row["n"] for row in server.rows)
        assert (len(found), set(found.values())) == (EVENTS, {1})
        assert server.repeats > 10
        assert server.foreign == []
