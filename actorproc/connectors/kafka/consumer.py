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
from contextlib import suppress
from itertools import groupby
from typing import Any, TypeVar

import anyio
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Message, TopicPartition

from actorproc.connectors.kafka.collector import collector_paused
from actorproc.connectors.kafka.columns import Key, by_partition, to_batch
from actorproc.errors import SourceError
from actorproc.records import Batch
from actorproc.runtime.error_text import format_error
from actorproc.runtime.logger import get_logger
from actorproc.sources.protocol import Chunk

T = TypeVar("T")

logger = get_logger(__name__)

_POLL = 0.1  # seconds for which the thread waits for a message; assignments wait as long
_SHORT_POLL, _SHORT_POLLS = 0.01, 100  # so many waits after a message are short; for ever, they would cost idle hosts
_CONNECT = 1.0  # seconds for which the thread waits for a new topic
_MESSAGES = 1_000  # taken from the client at once: of more, the caches no longer hold the objects
_ROUND = 10_000  # messages that become batches together, at most
_ROUND_BYTES = 8 * 2**20  # of a round, about: as many messages as the last round makes expect
PAUSE_BYTES = 16 * 2**20
"""Bytes of a partition that wait for its handler before it is paused, at most. A pause drops the messages
that librdkafka has prefetched, so it must be rare."""
_ENOUGH, _LET_DRAIN = 8, 1.0
"""While each partition has that part of its share waiting, nothing is read until a reader takes a chunk, as more would
only take memory; but for so many seconds at most, since the client serves its callbacks while it reads."""


class Feed:
    """Chunks of one partition on their way from the consumer's thread to its reader on the event loop.

    Args:
        taken: set whenever the reader takes a chunk.
    """

    def __init__(self, key: Key, name: str, taken: threading.Event) -> None:
        self.key = key
        self.name = name
        self._taken = taken
        self._loop = asyncio.get_running_loop()
        self._chunks: deque[Chunk] = deque()
        self._error: SourceError | None = None
        self._news = anyio.Event()
        self._put_bytes = 0  # written by the consumer's thread only
        self._taken_bytes = 0  # written by the event loop only

    @property
    def waiting(self) -> int:
        """Bytes that were put and not taken, also while the event loop is blocked and has not seen them."""
        return self._put_bytes - self._taken_bytes

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
        self._taken_bytes += chunk.batch.nbytes
        self._taken.set()
        return chunk

    def put(self, chunk: Chunk) -> None:
        """Add a chunk, from the consumer's thread. Nothing comes after an error: it would hide the gap."""
        self._put_bytes += chunk.batch.nbytes
        self._on_loop(self._put, chunk)

    def fail(self, error: SourceError) -> None:
        """No more chunks come, from any thread. The first error counts."""
        self._on_loop(self._fail, error)

    def _on_loop(self, what: Callable[[T], None], given: T) -> None:
        with suppress(RuntimeError):  # the loop is closed, and with it the reader
            self._loop.call_soon_threadsafe(what, given)

    def _put(self, chunk: Chunk) -> None:
        if self._error is None:
            self._chunks.append(chunk)
            self._news.set()

    def _fail(self, error: SourceError) -> None:
        self._error = self._error or error
        self._news.set()


class SharedConsumer:
    """The consumer and its thread. Its methods are for the event loop's thread; their orders are carried out in turn.

    An error in the thread ends all readers, and the thread goes on with a new consumer for those that come next.

    Args:
        most_waiting: bytes of all partitions that wait for their handlers. Shared evenly: a partition that has more
            waiting than its share is paused.

    Raises:
        KafkaException: librdkafka refuses a property.
    """

    def __init__(self, properties: Mapping[str, Any], most_waiting: int) -> None:
        self.last_error: KafkaError | None = None
        """What the client reported last, such as that no broker is reachable. None since messages came."""
        quiet = dict(properties) | {"error_cb": self._note_error, "log_level": 0}
        self.client = Consumer(quiet)
        """For questions to the brokers, from any thread. On the connection of the other consumer they would wait behind
        fetches that wait for news."""
        self._properties = quiet
        self._consumer = Consumer(quiet)
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._feeds: dict[Key, Feed] = {}  # the thread's
        self._paused: set[Feed] = set()  # the thread's
        self._topics: set[str] = set()  # of the feeds, and of earlier ones whose messages may still come
        self._most_waiting = most_waiting
        self._share = 0  # bytes of a partition that may wait
        self._round = _MESSAGES  # messages of the next round
        self._silent_polls = 0  # since the latest message
        self._news = threading.Event()  # there is an order, or a reader has taken a chunk
        self._stopped = False
        self.rounds = 0
        """Rounds of the thread so far."""
        self._thread = threading.Thread(target=self._run, name="actorproc-kafka", daemon=True)
        self._thread.start()

    def assign(self, key: Key, name: str, offset: int) -> Feed:
        """Read the partition from `offset` on."""
        feed = Feed(key, name, self._news)
        self._order(lambda: self._assign(feed, offset))
        return feed

    def unassign(self, feed: Feed) -> None:
        """Read the partition no more, unless a later `assign` reads it again."""
        self._order(lambda: self._unassign(feed))

    def fail(self, topic: str, error: SourceError) -> None:
        """End the readers of all partitions of a topic with this error."""
        self._order(lambda: self._fail(topic, error))

    def _order(self, order: Callable[[], None]) -> None:
        self._orders.put(order)
        self._news.set()

    def close(self) -> None:
        """End the thread, and wait for it. Blocks for a second or so."""
        self._stopped = True
        self._order(lambda: None)
        self._thread.join()

    # In the thread

    def _run(self) -> None:
        try:
            while not self._stopped:
                try:
                    self._news.clear()
                    self._carry_out_orders()
                    self._resume_drained()
                    self._read_round()
                    self.rounds += 1
                except Exception as error:
                    logger.exception("kafka.thread_failed")
                    self._begin_anew(SourceError(f"the Kafka consumer has failed: {format_error(error)}"))
        finally:
            self._consumer.close()
            self.client.close()

    def _begin_anew(self, error: SourceError) -> None:
        """End all readers, and make another consumer: this one may not be in the state that the thread believes."""
        for feed in self._feeds.values():
            feed.fail(error)
        self._feeds.clear()
        self._paused.clear()
        self._topics.clear()
        with suppress(Exception):
            self._consumer.close()
        with suppress(Exception):  # the closed one refuses the next order, and another is tried
            self._consumer = Consumer(self._properties)

    def _carry_out_orders(self) -> None:
        try:
            while True:
                self._orders.get(block=not self._feeds, timeout=_POLL)()
        except queue.Empty:
            pass

    def _resume_drained(self) -> None:
        """Go on with the paused partitions whose readers have taken most of the waiting chunks."""
        for feed in [feed for feed in self._paused if feed.waiting <= self._share // 4]:
            self._paused.remove(feed)
            self._consumer.resume([TopicPartition(*feed.key, OFFSET_INVALID)])

    def _read_round(self) -> None:
        """Wait for a message, and hand over all that have come by then."""
        if not self._feeds:
            return
        if all(feed.waiting > self._share // _ENOUGH for feed in self._feeds.values()) and self._news.wait(_LET_DRAIN):
            return
        timeout = _SHORT_POLL if self._silent_polls < _SHORT_POLLS else _POLL
        messages: list[Message] = self._consumer.consume(1, timeout)
        self._silent_polls = 0 if messages else self._silent_polls + 1
        if messages:
            with collector_paused():
                self._take_more(messages)
                self._hand_over(messages)
                messages.clear()  # before the collector is back, which would visit each

    def _take_more(self, messages: list[Message]) -> None:
        while len(messages) < self._round:
            wanted = min(_MESSAGES, self._round - len(messages))
            more = self._consumer.consume(wanted, 0)
            messages += more
            if len(more) < wanted:
                return

    def _hand_over(self, messages: list[Message]) -> None:
        has_errors = any(map(Message.error, messages))
        if has_errors:
            messages = [message for message in messages if self._has_place(message)]
        if not messages:
            return
        nbytes = 0
        for key, run in by_partition(messages, self._topics):
            if (feed := self._feeds.get(key)) is not None:
                try:
                    nbytes += self._put_with_errors(feed, run) if has_errors else self._put(feed, run)
                except Exception as error:
                    logger.exception("kafka.thread_failed", partition=feed.name)
                    feed.fail(SourceError(f"partition {feed.name} cannot be read: {format_error(error)}"))
        self._round = max(1, min(_ROUND, _ROUND_BYTES * len(messages) // max(nbytes, 1)))

    def _has_place(self, message: Message) -> bool:
        """Whether the message is of a partition. Notes an error that is of none."""
        if message.partition() is not None:
            return True
        if (error := message.error()) is not None:
            self._note_error(error)
        return False

    def _put_with_errors(self, feed: Feed, messages: list[Message]) -> int:
        """Put the messages between those that report something."""
        nbytes = 0
        for is_error, run in groupby(messages, lambda message: message.error() is not None):
            if not is_error:
                nbytes += self._put(feed, list(run))
                continue
            for message in run:
                self._report(feed, message)
        return nbytes

    def _put(self, feed: Feed, messages: list[Message]) -> int:
        """Put the messages into the feed as a chunk. Returns its bytes."""
        self.last_error = None
        batch = to_batch(feed.name, messages)
        if feed.waiting + batch.nbytes > self._share and feed not in self._paused:
            self._paused.add(feed)
            self._consumer.pause([TopicPartition(*feed.key)])
        feed.put(Chunk(batch, str(batch.last + 1)))
        return batch.nbytes

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
            if topic not in self._topics:
                self._topics.add(topic)
                self._connect(topic)
            if (before := self._feeds.get(feed.key)) is not None:
                self._paused.discard(before)
                self._consumer.incremental_unassign([TopicPartition(topic, number)])
            self._consumer.incremental_assign([TopicPartition(topic, number, offset)])
            self._consumer.resume([TopicPartition(topic, number)])  # a pause outlives the assignment in librdkafka
        except KafkaException as error:
            feed.fail(SourceError(f"partition {feed.name} cannot be assigned: {error.args[0].str()}"))
        except Exception as error:
            feed.fail(SourceError(f"partition {feed.name} cannot be assigned: {format_error(error)}"))
            raise
        else:
            self._feeds[feed.key] = feed
            self._share_out()

    def _connect(self, topic: str) -> None:
        """Ask for the topic, so that its first fetch does not wait for the client's own next look, up to a second."""
        with suppress(KafkaException):  # a later look will find it
            self._consumer.list_topics(topic, timeout=_CONNECT)

    def _unassign(self, feed: Feed) -> None:
        if self._feeds.get(feed.key) is feed:
            del self._feeds[feed.key]
            self._paused.discard(feed)
            self._consumer.incremental_unassign([TopicPartition(*feed.key)])
            self._share_out()

    def _share_out(self) -> None:
        self._share = min(PAUSE_BYTES, self._most_waiting // max(1, len(self._feeds)))

    def _fail(self, topic: str, error: SourceError) -> None:
        for feed in self._feeds.values():
            if feed.key[0] == topic:
                feed.fail(error)

    def _note_error(self, error: KafkaError) -> None:
        if self.last_error is None or error.code() != KafkaError._ALL_BROKERS_DOWN:  # which says less than its cause
            self.last_error = error
