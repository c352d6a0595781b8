"""A consumer group, seen from outside: its committed offsets are read and written, and it is never joined."""

from __future__ import annotations

from collections.abc import Mapping
from queue import SimpleQueue

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from actorproc.connectors.kafka.columns import Key
from actorproc.connectors.kafka.properties import Properties

_POLL = 0.1  # seconds between two looks for an answer
_ATTEMPTS = 10
_PAUSE = 0.3  # seconds between attempts: a coordinator is elected meanwhile, or loads its offsets
_COORDINATOR_MOVES = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
)


class GroupClient:
    """A client of one group. Its methods block.

    Raises:
        KafkaException: librdkafka refuses a property.
    """

    def __init__(self, group: str, properties: Properties) -> None:
        self.client = Consumer(properties | {"group.id": group, "on_commit": self._answered})
        self._answers: SimpleQueue[KafkaError | None] = SimpleQueue()

    def committed(self, key: Key, timeout: float) -> int | None:
        """Offset that the group has committed; None: it has not."""
        for attempts_left in reversed(range(_ATTEMPTS)):
            try:
                [found] = self.client.committed([TopicPartition(*key)], timeout=timeout)
                return found.offset if found.offset >= 0 else None
            except KafkaException as error:
                if error.args[0].code() not in _COORDINATOR_MOVES or not attempts_left:
                    raise
                self.client.poll(_PAUSE)
        raise AssertionError("the last attempt returns or raises")

    def commit(self, offsets: Mapping[Key, int], timeout: float) -> None:
        """Commit offsets, as a consumer without a group membership may while the group has no members.

        Raises:
            KafkaException: the group has members, or its coordinator has not answered within `timeout` seconds.
        """
        while not self._answers.empty():  # of a commit that was given up
            self._answers.get_nowait()
        # Not `asynchronous=False`, which waits for an unreachable coordinator for 45 s.
        self.client.commit(offsets=[TopicPartition(*key, offset) for key, offset in offsets.items()], asynchronous=True)
        for _ in range(round(timeout / _POLL)):
            if not self._answers.empty():
                break
            self.client.poll(_POLL)
        else:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        if (error := self._answers.get_nowait()) is not None:
            raise KafkaException(error)

    def _answered(self, error: KafkaError | None, places: list[TopicPartition]) -> None:
        self._answers.put(error or next((place.error for place in places if place.error is not None), None))
