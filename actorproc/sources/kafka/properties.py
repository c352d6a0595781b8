"""Which brokers, topics and librdkafka properties a Kafka URL and its options mean."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from actorproc.errors import UsageError

Properties = dict[str, str | int | float | bool]

DEFAULTS: Properties = {
    "group.id": "actorproc",  # librdkafka wants one; nothing is committed to it and nobody joins it
    "isolation.level": "read_committed",
    "fetch.queue.backoff.ms": 5,  # the default of 1000 costs a factor of eight (docs/performance.md)
    "queued.min.messages": 20_000,
    "queued.max.messages.kbytes": 16_384,  # over all partitions of the host
    "socket.keepalive.enable": True,
}
"""Properties that the user may override."""

OURS: Properties = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
}
"""Properties on which correctness rests."""


@dataclass(frozen=True, slots=True)
class KafkaAddress:
    """`topics`: names, or one pattern that begins with `^`."""

    brokers: str
    topics: tuple[str, ...]

    @property
    def pattern(self) -> re.Pattern[str] | None:
        """The pattern that topics must match from their beginning on; None where they are named."""
        return re.compile(self.topics[0]) if self.topics[0].startswith("^") else None

    def includes(self, topic: str) -> bool:
        pattern = self.pattern
        return bool(pattern.match(topic)) if pattern else topic in self.topics


def parse_url(url: str) -> KafkaAddress:
    """The brokers and topics of `kafka://BROKER[:PORT][,...]/TOPIC[,...]` or `.../^REGEX`.

    Raises:
        UsageError: a part is missing, or the pattern is no regular expression.
    """
    form = "kafka://BROKER:PORT[,BROKER:PORT...]/TOPIC[,TOPIC...] or /^REGEX"
    brokers, slash, topics = url.removeprefix("kafka://").partition("/")
    if not brokers or not slash or not topics:
        raise UsageError(f"source {url!r}: write {form}")
    if "@" in brokers:
        raise UsageError(
            f"source kafka://...@...: no credentials in a URL; put sasl.password into source_options, and write {form}"
        )
    names = (topics,) if topics.startswith("^") else tuple(dict.fromkeys(name for name in topics.split(",") if name))
    try:
        address = KafkaAddress(brokers, names)
        _ = address.pattern
    except re.error as error:
        raise UsageError(f"source {url!r}: {topics!r} is no regular expression: {error}") from None
    return address


def client_properties(brokers: str, given: Mapping[str, str | int | float | bool]) -> Properties:
    """librdkafka's properties for a consumer: ours, over those that are `given`, over the defaults.

    Raises:
        UsageError: one of those on which correctness rests is given another value.
    """
    for name in given.keys() & OURS.keys():
        if str(given[name]).lower() != str(OURS[name]).lower():
            raise UsageError(
                f"source option {name} = {given[name]!r}: actorproc needs {str(OURS[name]).lower()}; leave it out"
            )
    return {"bootstrap.servers": brokers, **DEFAULTS, **given, **OURS}
