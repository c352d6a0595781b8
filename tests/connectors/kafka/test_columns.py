"""Messages of the Kafka client as columns, without a broker."""

from __future__ import annotations

import pytest

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from confluent_kafka import Message

from actorproc.connectors.kafka.columns import by_partition, to_batch


def message(topic: str, partition: int, offset: int, **more: object) -> Message:
    return Message(topic=topic, partition=partition, offset=offset, value=b"%d" % offset, **more)  # type: ignore[arg-type]


def offsets_of(messages: list[Message], topics: set[str]) -> dict[tuple[str, int], list[int | None]]:
    return {key: [one.offset() for one in found] for key, found in by_partition(messages, topics)}


def test_mixed_messages_are_split_by_topic_and_partition_in_order() -> None:
    mixed = [message(topic, partition, n) for n, (topic, partition) in enumerate([("a", 0), ("b", 0), ("a", 1)] * 3)]
    assert offsets_of(mixed, {"a", "b"}) == {("a", 0): [0, 3, 6], ("b", 0): [1, 4, 7], ("a", 1): [2, 5, 8]}
    assert offsets_of(mixed[::3], {"a"}) == {("a", 0): [0, 3, 6]}


def test_messages_of_a_topic_that_is_no_longer_read_keep_its_name() -> None:
    assert offsets_of([message("gone", 0, 1), message("a", 0, 2)], {"a", "gone"}) == {("gone", 0): [1], ("a", 0): [2]}


@pytest.mark.parametrize("offsets", [[7], [7, 8, 9], [7, 9, 12], [0, 1, 3]])
def test_sequences_are_the_offsets_with_or_without_gaps(offsets: list[int]) -> None:
    batch = to_batch("a-0", [message("a", 0, offset) for offset in offsets])
    assert batch.sequences == offsets
    assert batch.values == [b"%d" % offset for offset in offsets]


def test_headers_of_one_message_leave_the_others_without() -> None:
    batch = to_batch("a-0", [message("a", 0, 1), message("a", 0, 2, headers=[("h", b"1"), ("n", None)])])
    assert batch.headers == [(), (("h", b"1"), ("n", b""))]
