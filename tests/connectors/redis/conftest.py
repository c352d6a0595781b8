"""One server for all tests of this folder, and its own for those that kill it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.connectors.redis.server import RedisServer, redis_server
from tests.servers import or_skip


@pytest.fixture(scope="session")
def server() -> Iterator[RedisServer]:
    with or_skip(redis_server()) as found:
        yield found


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    with or_skip(redis_server()) as found:
        yield found


@pytest.fixture
def cluster() -> Iterator[tuple[RedisServer, RedisServer]]:
    """Two nodes with half of the slots each."""
    with (
        or_skip(redis_server("--cluster-enabled", "yes")) as one,
        or_skip(redis_server("--cluster-enabled", "yes")) as two,
    ):
        for node, slots in ((one, (0, 8191)), (two, (8192, 16383))):
            with node.client() as client:
                client.execute_command("CLUSTER ADDSLOTS", *range(slots[0], slots[1] + 1))
        with one.client() as client:
            client.execute_command("CLUSTER MEET", "127.0.0.1", two.port)
            until = time.monotonic() + 30
            while client.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
                assert time.monotonic() < until
                time.sleep(0.1)
        yield one, two
