"""Hosts and the server are killed, and the server goes back to older data: each committed row is in the stream once."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from tests.connectors.redis.server import RedisServer
from tests.sinks.killed_hosts import deliver_the_rest, feed, host, pause, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.long]

EVENTS = 80_000


def numbers(server: RedisServer) -> list[int]:
    with server.client() as client:
        return [int(fields["n"]) for _, fields in client.xrange("copies")]


def count(server: RedisServer) -> int:
    with server.client() as client:
        return int(client.xlen("copies"))


def test_each_committed_row_is_in_the_stream_once(own_server: RedisServer, tmp_path: Path) -> None:
    server, sink = own_server, ["--sink", f"r={own_server.url}", "--sink-option", "r.stream=copies"]
    feed(tmp_path, EVENTS)
    random = Random(7)
    for round_ in range(8):
        before = count(server)
        with host(tmp_path, sink, "--host", "a"), host(tmp_path, sink, "--host", "b") as other:
            wait_until(lambda: count(server) > before + 500)  # noqa: B023
            time.sleep(random.uniform(0, 1))
            match round_ % 4:
                case 1:
                    server.kill()
                    time.sleep(0.5)
                    server.start()
                case 2:
                    pause(other)
                case 3:
                    server.copy()
                    copied = count(server)
                    wait_until(lambda: count(server) >= copied + 1000)  # noqa: B023
                    server.go_back()
                    assert count(server) < copied + 1000
                    time.sleep(1)
    deliver_the_rest(tmp_path, sink)
    found = Counter(numbers(server))
    assert (len(found), set(found.values())) == (EVENTS, {1})
