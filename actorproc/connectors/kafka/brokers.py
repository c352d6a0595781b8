"""Questions to the brokers: topics and their ids, offsets, and the committed offsets of consumer groups.

Each is asked in a thread, by clients that do not fetch: behind a fetch an answer would wait.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from actorproc.connectors.kafka.address import KafkaAddress
from actorproc.connectors.kafka.columns import Key
from actorproc.connectors.kafka.consumer import SharedConsumer
from actorproc.connectors.kafka.group_client import GroupClient
from actorproc.connectors.kafka.properties import Properties
from actorproc.errors import PartitionGone, SourceError
from actorproc.runtime.clock import Clock

T = TypeVar("T")

_NO_ID = "A" * 22  # zeros in base 64
_UNSUPPORTED = (KafkaError._UNSUPPORTED_FEATURE, KafkaError.UNSUPPORTED_VERSION)


_AWAY = (
    KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE,
    KafkaError.REQUEST_TIMED_OUT, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.COORDINATOR_NOT_AVAILABLE,
)  # fmt: skip


_UNKNOWN = (
    KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_ID,
)  # fmt: skip
"""The brokers say that there is no such topic, or partition. A broker that has just started may say so, too."""


class BrokersAway(SourceError):
    """No broker answers, or not in time."""


class Topics(NamedTuple):
    """Attributes:
    found: topic -> numbers of its partitions.
    missing: topics that the brokers do not know.
    """

    found: dict[str, list[int]]
    missing: set[str]


class Brokers:
    """Answers of the brokers at one address. A SourceError names the question.

    Args:
        name: of the source, for messages.
        consumer: whose client asks, and which knows why it cannot.
        properties: librdkafka's.
    """

    def __init__(
        self, name: str, address: KafkaAddress, consumer: SharedConsumer, properties: Properties, clock: Clock
    ) -> None:
        self._name = name
        self._address = address
        self._clock = clock
        self._consumer = consumer
        self._client = consumer.client
        self._properties = properties | {"error_cb": lambda _: None, "log_level": 0}
        self._admin = AdminClient(self._properties)
        self._groups: dict[str, GroupClient] = {}
        self.timeout = 10.0
        """Seconds for one question."""

    async def close(self) -> None:
        for group in self._groups.values():
            await self._clock.run_in_thread(group.client.close)

    async def cluster_id(self) -> str | None:
        return await self._ask(lambda: self._client.cluster_id(timeout=self.timeout), "for its cluster id")

    async def topics(self, known: Collection[str] = ()) -> Topics:
        """The topics that the address names.

        Args:
            known: topics that match the pattern of the address and were there before: each is asked for by its name, if
                the brokers list it no more.

        Raises:
            SourceError: a topic may not be read. It ends the readers of the topic, too: librdkafka would go on asking
                for it in silence.
        """
        topics = await self._ask(lambda: self._list_topics(known), "for its topics")
        missing = {name for name, topic in topics.items() if topic.error is not None and _is_unknown(topic.error)}
        for name in topics.keys() - missing:
            if (cause := topics[name].error) is not None:
                error = SourceError(f"topic {name} of {self._name} cannot be read: {cause.str()}")
                self._consumer.fail(name, error)
                raise error
        return Topics({name: sorted(topics[name].partitions) for name in sorted(topics.keys() - missing)}, missing)

    def _list_topics(self, known: Collection[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self._address.pattern is not None:
            listed = self._client.list_topics(timeout=self.timeout).topics
            found = {name: topic for name, topic in listed.items() if self._address.includes(name)}
        names = self._address.topics if self._address.pattern is None else [name for name in known if name not in found]
        return found | {name: self._client.list_topics(name, timeout=self.timeout).topics[name] for name in names}

    async def topic_ids(self, topics: Sequence[str]) -> dict[str, str | None]:
        """Ids that change when a topic is deleted and created again; None where the broker knows none (before 2.8)."""
        return await self._ask(lambda: self._topic_ids(topics), f"for the ids of {', '.join(topics)}") if topics else {}

    def _topic_ids(self, topics: Sequence[str]) -> dict[str, str | None]:
        described = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=self.timeout)
        return {topic: self._topic_id(future) for topic, future in described.items()}

    def _topic_id(self, description: Future[Any]) -> str | None:
        try:
            topic_id = str(description.result(2 * self.timeout).topic_id)
        except KafkaException as error:
            if error.args[0].code() in _UNSUPPORTED:
                return None
            raise
        return None if topic_id in (_NO_ID, "None") else topic_id

    async def watermarks(self, key: Key) -> tuple[int, int]:
        """The first offset, and the one after the last."""
        where = TopicPartition(*key)
        low, high = await self._ask(
            lambda: self._client.get_watermark_offsets(where, timeout=self.timeout, cached=False),
            f"where {_name(key)} ends",
        )
        return low, high

    async def offset_at(self, key: Key, time: datetime) -> int | None:
        """Offset of the first message at or after a time; None if there is none."""
        where = TopicPartition(*key, max(0, int(time.timestamp() * 1000)))  # -1 and -2 are names of the two ends
        [found] = await self._ask(
            lambda: self._client.offsets_for_times([where], timeout=self.timeout), f"where {_name(key)} has {time}"
        )
        return found.offset if found.offset >= 0 else None

    # Not by the AdminClient: librdkafka ends the process if a coordinator fails to answer it
    # (https://github.com/confluentinc/librdkafka/issues/4605).

    async def committed(self, group: str, key: Key) -> int | None:
        """Offset that the consumer group has committed; None: it has not."""
        client = self._group(group)
        what = f"what group {group} has committed of {_name(key)}"
        return await self._ask(lambda: client.committed(key, self.timeout), what)

    async def commit(self, group: str, offsets: Mapping[Key, int]) -> None:
        """Commit offsets to a group that has no members.

        Raises:
            SourceError: the group has members, or its coordinator does not answer.
        """
        client = self._group(group)
        await self._ask(lambda: client.commit(offsets, self.timeout), f"to commit for group {group}")

    def _group(self, group: str) -> GroupClient:
        if group not in self._groups:
            self._groups[group] = GroupClient(group, self._properties)
        return self._groups[group]

    async def _ask(self, question: Callable[[], T], what: str) -> T:
        try:
            answer = await self._clock.run_in_thread(question)
        except KafkaException as error:
            await self._clock.run_in_thread(lambda: self._client.poll(0))  # delivers the client's reports
            cause = self._consumer.last_error or error.args[0]
            raise _kind_of(cause)(f"{self._name}: the brokers were asked {what}: {cause.str()}") from None
        self._consumer.last_error = None
        return answer


def _is_unknown(error: KafkaError) -> bool:
    return error.code() in _UNKNOWN


def _kind_of(error: KafkaError) -> type[SourceError]:
    if error.code() in _AWAY:
        return BrokersAway
    return PartitionGone if _is_unknown(error) else SourceError


def _name(key: Key) -> str:
    return f"{key[0]}-{key[1]}"
