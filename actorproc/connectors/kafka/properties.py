"""librdkafka's properties for a consumer: those of actorproc and those that the user gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actorproc.errors import UsageError

Properties = dict[str, Any]
"""librdkafka's properties by name. A value may be a secret."""

DEFAULTS: Properties = {
    "group.id": "actorproc",  # librdkafka wants one; nothing is committed to it and nobody joins it
    "isolation.level": "read_committed",
    "check.crcs": True,  # as in Kafka's Java client; librdkafka would pass on what a disk has changed
    "fetch.queue.backoff.ms": 5,  # the default of 1000 costs a factor of eight (docs/performance.md)
    "max.partition.fetch.bytes": 2**18,  # as messages in the client, a reply takes many times its size
    "queued.min.messages": 10_000,
    "queued.max.messages.kbytes": 16_384,  # over all partitions of the host
    "socket.keepalive.enable": True,
    "reconnect.backoff.max.ms": 1_000,  # as in Kafka's Java client; by default a broker's outage lasts 10 s longer
}
"""Properties that the user may override."""

OURS: Properties = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
}
"""Properties on which correctness rests."""


def client_properties(brokers: str, given: Mapping[str, Any], service: Mapping[str, Any] | None = None) -> Properties:
    """librdkafka's properties for a consumer: ours, over those that are `given`, over the service's, over the defaults.

    Raises:
        UsageError: one of those on which correctness rests is given another value.
    """
    for name in given.keys() & OURS.keys():
        if str(given[name]).lower() != str(OURS[name]).lower():
            raise UsageError(
                f"source option {name} = {given[name]!r}: actorproc needs {str(OURS[name]).lower()}; leave it out"
            )
    return {"bootstrap.servers": brokers, **DEFAULTS, **(service or {}), **given, **OURS}
