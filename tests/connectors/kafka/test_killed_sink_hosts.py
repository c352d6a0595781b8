"""Hosts and the broker are killed while rows go to a topic: each committed row is there once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.connectors.kafka.server import Broker
from tests.sinks.killed_hosts import deliver_with_killed_hosts

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from tests.connectors.kafka.test_sink import values
from tests.connectors.kafka.topics import Topic

pytestmark = [pytest.mark.servers, pytest.mark.long]

EVENTS = 40_000


def test_each_committed_row_is_in_the_topic_once(broker: Broker, tmp_path: Path) -> None:
    topic = Topic(broker, partitions=3)

    def strike() -> None:
        broker.stop()
        broker.start()

    sink = ["--sink", f"topic={topic.url}", "--sink-option", "topic.key=n", "--sink-option", "topic.timeout=10"]
    deliver_with_killed_hosts(tmp_path, sink, EVENTS, strike, lambda: len(values(topic)))
    assert sorted(values(topic)) == list(range(EVENTS))
