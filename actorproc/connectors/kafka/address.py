"""The brokers and topics that a Kafka URL names."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from actorproc.connectors.kafka.properties import Properties
from actorproc.errors import UsageError


@dataclass(frozen=True, slots=True)
class KafkaAddress:
    """Where to read, and the librdkafka properties that the place needs.

    Attributes:
        topics: names, or one pattern that begins with `^`.
    """

    brokers: str
    topics: tuple[str, ...]
    properties: Properties = field(default_factory=dict, repr=False)

    @property
    def pattern(self) -> re.Pattern[str] | None:
        """The pattern that topics must match from their beginning on; None where they are named."""
        return re.compile(self.topics[0]) if self.topics[0].startswith("^") else None

    def includes(self, topic: str) -> bool:
        pattern = self.pattern
        return bool(pattern.match(topic)) if pattern else topic in self.topics


def address_of(url: str, form: str, properties: Properties | None = None, *, of: str = "source") -> KafkaAddress:
    """The address that a URL `SCHEME://BROKERS/TOPICS` names.

    Args:
        form: of the URL, for messages.
        of: "source" or "sink", for messages.

    Raises:
        UsageError: a part is missing, it contains credentials, or the pattern is no regular expression.
    """
    scheme, _, place = url.partition("://")
    brokers, _, topics = place.partition("/")
    if "@" in brokers:
        raise UsageError(
            f"{of} {scheme}://...@...: no credentials in a URL; put sasl.password into its options, and write {form}"
        )
    if not brokers or not topics.strip(","):
        raise UsageError(f"{of} {url!r}: write {form}")
    if topics.startswith("^"):
        _check_pattern(url, topics)
        return KafkaAddress(brokers, (topics,), properties or {})
    names = dict.fromkeys(name for name in topics.split(",") if name)
    return KafkaAddress(brokers, tuple(names), properties or {})


def _check_pattern(url: str, pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise UsageError(f"source {url!r}: {pattern!r} is no regular expression: {error}") from None
