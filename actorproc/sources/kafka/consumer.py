"""One librdkafka consumer for all partitions of a host, in one thread: makes whole batches of messages.

Partitions are assigned one by one as their leases come and go; the consumer never joins a group, so there are no
rebalances at the broker. Back-pressure pauses single partitions.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any

import anyio
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Message, TopicPartition

from actorproc.errors import SourceError
from actorproc.records import Batch
from actorproc.runtime.logger import get_logger
from actorproc.sources.kafka.columns import to_batch
from actorproc.sources.protocol import Chunk

log = get_logger(__name__)

_POLL = 0.1  # seconds for which the thread waits for a message; assignments wait as long
_MESSAGES = 1_000  # at once: more cost memory, fewer cost calls
_ROUND = 10_000  # messages of a round, before batches are made
PAUSE_BYTES = 16 * 2**20
"""Bytes of a partition that wait for its handler before it is paused at the broker. A pause drops what librdkafka has
prefetched, so it must be rare."""
_RESUME_BYTES = PAUSE_BYTES // 4

Key = tuple[str, int]
"""Topic and number of a partition."""


class Feed:
    """Chunks of one partition on their way from the consumer's thread to its reader on the event loop."""

    def __init__(self, key: Key, name: str) -> None:
        self.key = key
        self.name = name
        self.paused = False
        self._loop = asyncio.get_running_loop()
        self._chunks: deque[Chunk] = deque()
        self._error: SourceError | None = None
        self._news = anyio.Event()
        self.waiting = 0
        """Bytes of the chunks. Written by the event loop only."""

    async def next(self) -> Chunk:
        """The next chunk.

        Raises:
            SourceError: the partition cannot be read on.
        """
        while not self._chunks:
            if self._error is not None:
                raise self._error
            self._news = anyio.Event()
            await self._news.wait()
        chunk = self._chunks.popleft()
        self.waiting -= chunk.batch.nbytes
        return chunk

    def put(self, chunk: Chunk) -> None:
        """Add a chunk, from any thread."""
        self._loop.call_soon_threadsafe(self._put, chunk)

    def fail(self, error: SourceError) -> None:
        """No more chunks come, from any thread."""
        self._loop.call_soon_threadsafe(self._fail, error)

    def _put(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)
        self.waiting += chunk.batch.nbytes
        self._news.set()

    def _fail(self, error: SourceError) -> None:
        self._error = error
        self._news.set()


class SharedConsumer:
    """The consumer and its thread. Its methods are for the event loop's thread; what they order is done in turn."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        """Raises KafkaException where librdkafka refuses a property."""
        self.last_error: KafkaError | None = None
        """What the client reported last, such as that no broker is reachable. None since messages came."""
        quiet = dict(properties) | {"error_cb": self._note_error, "log_level": 0}
        self.client = Consumer(quiet)
        """For questions to the brokers, from any thread. On the connection of the other consumer they would wait behind
        fetches that wait for news."""
        self._consumer = Consumer(quiet)
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._feeds: dict[Key, Feed] = {}  # the thread's
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="actorproc-kafka", daemon=True)
        self._thread.start()

    def assign(self, key: Key, name: str, offset: int) -> Feed:
        """Read the partition from `offset` on."""
        feed = Feed(key, name)
        self._orders.put(lambda: self._assign(feed, offset))
        return feed

    def unassign(self, feed: Feed) -> None:
        """Read the partition no more, unless a later `assign` reads it again."""
        self._orders.put(lambda: self._unassign(feed))

    def resume_if_drained(self, feed: Feed) -> None:
        """Go on with a paused partition once its reader has taken most of what waited."""
        if feed.paused and feed.waiting <= _RESUME_BYTES:
            feed.paused = False
            self._orders.put(lambda: self._resume(feed))

    def close(self) -> None:
        """End the thread, and wait for it. Blocks for a second or so."""
        self._stopped = True
        self._thread.join()

    # In the thread

    def _run(self) -> None:
        try:
            while not self._stopped:
                self._carry_out_orders()
                messages = self._consume()
                for key, run in groupby(messages, _key_of):
                    if (feed := self._feeds.get(key)) is not None:
                        self._deliver(feed, list(run))
        except Exception as error:
            log.exception("kafka.thread_failed")
            for feed in self._feeds.values():
                feed.fail(SourceError(f"the Kafka consumer has failed: {error}"))
        finally:
            self._consumer.close()
            self.client.close()

    def _carry_out_orders(self) -> None:
        try:
            while True:
                self._orders.get(block=not self._feeds, timeout=_POLL)()
        except queue.Empty:
            pass

    def _consume(self) -> list[Message]:
        """What has come, ordered by partition."""
        messages: list[Message] = self._consumer.consume(1, _POLL) if self._feeds else []
        while messages and len(messages) < _ROUND:
            more = self._consumer.consume(_MESSAGES, 0)
            messages += more
            if len(more) < _MESSAGES:
                break
        messages.sort(key=_key_of)  # stable: offsets of a partition stay in order
        return messages

    def _deliver(self, feed: Feed, messages: list[Message]) -> None:
        if not any(map(Message.error, messages)):
            self._put(feed, messages)
            return
        good: list[Message] = []
        for message in messages:
            if message.error() is None:
                good.append(message)
                continue
            self._put(feed, good)
            good = []
            self._report(feed, message)
        self._put(feed, good)

    def _put(self, feed: Feed, messages: list[Message]) -> None:
        if not messages:
            return
        self.last_error = None
        batch = to_batch(feed.name, messages)
        if feed.waiting + batch.nbytes > PAUSE_BYTES and not feed.paused:
            feed.paused = True  # before the chunk is there: its reader resumes, and no later chunk would come
            self._consumer.pause([TopicPartition(*feed.key)])
        feed.put(Chunk(batch, str(batch.last + 1)))

    def _report(self, feed: Feed, message: Message) -> None:
        error = message.error()
        if error is None:
            return
        if error.code() == KafkaError._PARTITION_EOF:
            self.last_error = None
            feed.put(Chunk(Batch.empty(feed.name), str(message.offset())))
        elif not error.retriable():
            feed.fail(SourceError(f"partition {feed.name} cannot be read: {error.str()}"))

    def _assign(self, feed: Feed, offset: int) -> None:
        topic, number = feed.key
        try:
            if feed.key in self._feeds:
                self._consumer.incremental_unassign([TopicPartition(topic, number)])
            self._consumer.incremental_assign([TopicPartition(topic, number, offset)])
        except KafkaException as error:
            feed.fail(SourceError(f"partition {feed.name} cannot be assigned: {error.args[0].str()}"))
        else:
            self._feeds[feed.key] = feed

    def _unassign(self, feed: Feed) -> None:
        if self._feeds.get(feed.key) is feed:
            del self._feeds[feed.key]
            self._consumer.incremental_unassign([TopicPartition(*feed.key)])

    def _resume(self, feed: Feed) -> None:
        if self._feeds.get(feed.key) is feed:
            self._consumer.resume([TopicPartition(*feed.key, OFFSET_INVALID)])

    def _note_error(self, error: KafkaError) -> None:
        if self.last_error is None or error.code() != KafkaError._ALL_BROKERS_DOWN:  # which says less than its cause
            self.last_error = error


def _key_of(message: Message) -> Key:
    return message.topic() or "", -1 if (number := message.partition()) is None else number
