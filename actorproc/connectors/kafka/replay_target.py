"""Topics as the target of a replay: each batch of dead letters is a transaction of Kafka."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa

from actorproc.connectors.kafka.messages import copy_of
from actorproc.connectors.kafka.send_errors import MessagesRefused, ProducerLost
from actorproc.connectors.kafka.topic_position import TopicPosition
from actorproc.connectors.kafka.writers import TransactionalWriter
from actorproc.records import Batch
from actorproc.runtime.clock import SYSTEM
from actorproc.sources.replay_target import Outcome

_BROKERS_LIMIT = {"message.max.bytes": 10**9}
"""The client's own limit is lower than the size of messages that a topic may have accepted."""

_TRIES = 3  # producers of a batch


class KafkaTarget:
    """The topics of a Kafka source. A record goes to the partition from which it came.

    Args:
        url, identity: of the source.
        properties: of a producer for these topics.
        partitions: that the source lists.
    """

    kind = ""
    letters_at_once: int | None = None
    has_transactions = True

    def __init__(self, url: str, identity: str, properties: Mapping[str, Any], partitions: Iterable[str]) -> None:
        self.url, self.identity = url, identity
        self._properties, self._partitions = properties, frozenset(partitions)

    def has_partition(self, partition: str) -> bool:
        return partition in self._partitions

    async def append(self, transaction: str, batch: int, partition: str, records: pa.RecordBatch) -> Outcome:
        """See `ReplayTarget.append`: a transaction of Kafka, which stores the number of the batch with it.

        That number is left out of the stored position if the batch is void.
        """
        return await SYSTEM.run_in_thread(self._append, f"actorproc-{transaction}", batch, partition, records)

    def _append(self, transaction: str, batch: int, partition: str, records: pa.RecordBatch) -> Outcome:
        """A broker that is slow may fence a producer by its own repeated request: the next one finds out."""
        for _ in range(_TRIES - 1):
            with suppress(ProducerLost):
                return self._append_once(transaction, batch, partition, records)
        return self._append_once(transaction, batch, partition, records)

    def _append_once(self, transaction: str, batch: int, partition: str, records: pa.RecordBatch) -> Outcome:
        topic, _, number = partition.rpartition("-")
        properties = {**_BROKERS_LIMIT, **self._properties}
        writer = TransactionalWriter(properties, topic, transaction, timeout=60.0)
        try:
            position = writer.open()
            if batch <= position.upto:
                return Outcome(is_void=batch in position.left_out)
            letters = Batch(partition, records, pa.array(range(records.num_rows), pa.int64()))
            messages = [(record.sequence, copy_of(record)._replace(partition=int(number))) for record in letters]
            try:
                outcome = Outcome(writer.write(messages, TopicPosition(batch)))
            except MessagesRefused as error:
                outcome = Outcome(reason=str(error))
            if outcome == Outcome():
                return outcome
            writer.write([], TopicPosition(batch, frozenset((batch,))))
            return outcome._replace(is_void=True)
        finally:
            writer.close()

    async def readers(self) -> list[str]:
        """None: brokers do not say who reads a topic without a group."""
        return []
