"""Queues of an AMQP broker as the log: a producer that notes the accepted messages, and the order of each queue."""

from __future__ import annotations

import io
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from zlib import crc32

import orjson
import pyarrow.parquet as pq
from proton import Delivery, Message, ProtonException
from proton.utils import BlockingConnection

from actorproc.connectors.amqp.address import parse_address
from tests.chaos import workload
from tests.chaos.counts import is_timer_row
from tests.chaos.objects import Objects
from tests.chaos.truth import Acks, Sent
from tests.connectors.amqp.servers import PASSWORD, USER, AmqpBroker, artemis, broker_j

BROKERS: Mapping[str, Callable[[Path], AbstractContextManager[AmqpBroker]]] = {
    "artemis": artemis,
    "broker-j": partial(broker_j, durable=True),
}

BURST = 16  # messages at once
ANSWER = 20.0  # seconds for an answer of the broker
PAUSE = 0.5  # seconds until the broker is tried again

TIMERS: dict[str, Any] = {"max_unacknowledged": 150}
"""Settings of every host: a window that is full now and then."""


def names(partitions: int) -> str:
    """Of the queues, as the URL of a source has them."""
    return f"parked.chaos-{{0..{partitions - 1}}}"


# Sending


def produce(url: str, name: str, acks: Path, rate: float) -> None:
    """Send messages until SIGTERM, `rate` a second, each once: one whose outcome is unknown is not sent again.

    Before a message is sent, a line `number queue time` goes to a file beside `acks`. Once it was accepted, a line
    `number queue 0` goes to `acks`.
    """
    stopping = False

    def stop(_: int, __: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    numbers = _bursts()
    while not stopping:
        with suppress(ProtonException, OSError), _Sender(url, name, acks) as sender:
            while not stopping:
                sender.send(next(numbers))
                time.sleep(BURST / rate)
        time.sleep(PAUSE)


def _bursts() -> Iterator[range]:
    first = 0
    while True:
        yield range(first, first + BURST)
        first += BURST


class _Sender:
    """One connection."""

    def __init__(self, url: str, name: str, acks: Path) -> None:
        address = parse_address(url, {})
        self._name, self._queues = name, address.queues
        self._acks, self._notes = acks.open("ab", buffering=0), acks.with_suffix(".sent").open("ab", buffering=0)
        how: dict[str, Any] = {
            "user": USER,
            "password": PASSWORD,
            "allowed_mechs": "PLAIN",
            "allow_insecure_mechs": True,
        }
        self._connection = BlockingConnection(str(address), timeout=ANSWER, **how)
        self._links = {queue: self._connection.create_sender(queue).link for queue in self._queues}

    def __enter__(self) -> _Sender:
        return self

    def __exit__(self, *_: object) -> None:
        self._acks.close()
        self._notes.close()
        with suppress(ProtonException, OSError):
            self._connection.close()

    def send(self, numbers: range) -> None:
        """Send these messages, and wait for the answers. Raises ProtonException or OSError."""
        under_way = [(number, *self._begin(number)) for number in numbers]
        self._connection.wait(lambda: all(delivery.remote_state for *_, delivery in under_way))
        for number, queue, delivery in under_way:
            if delivery.remote_state == Delivery.ACCEPTED:
                self._acks.write(b"%d %s 0\n" % (number, queue.encode()))
            delivery.settle()

    def _begin(self, number: int) -> tuple[str, Any]:
        key, value = workload.key_of(self._name, number), workload.value_of(self._name, number)
        queue = self._queues[crc32(key) % len(self._queues)]
        now = int(time.time() * 1000) / 1000  # as a message keeps it
        self._notes.write(f"{number} {queue} {now}\n".encode())
        message = Message(
            body=value, id=f"{self._name}/{number}", group_id=key.decode(), creation_time=now, durable=True
        )
        return queue, self._links[queue].send(message)


# The content of each queue


class _Note(NamedTuple):
    sent: Sent
    accepted: bool


def read_records(
    container: Objects, processor: str, acks: Mapping[str, Acks], folder: Path, faults: list[str]
) -> dict[str, list[Sent]]:
    """The messages of each queue in their order, as far as they were accepted or have a result.

    One producer sends at a time, each message once, so a queue holds its messages in the order of sending.
    The output shows whether a message without an answer is in the queue. If it has no result, the numbers of the
    messages behind it show that. The place of each acknowledged message in `acks` becomes the one in its queue.
    """
    records = {}
    for queue, notes in _read_notes(folder, acks).items():
        found, count = _read_results(container, f"{processor}/", queue, faults)
        records[queue] = _put_in_order(queue, notes, found, count, faults)
        for sequence, (producer, number, _) in enumerate(records[queue]):
            if number in acks[producer].places:
                acks[producer].places[number] = (queue, sequence)
    return records


def _read_notes(folder: Path, acks: Mapping[str, Acks]) -> dict[str, list[_Note]]:
    """The messages sent to each queue, in order."""
    notes: defaultdict[str, list[_Note]] = defaultdict(list)
    for path in sorted(folder.glob("*.sent"), key=lambda path: int(path.stem[1:])):
        *lines, _ = path.read_text().split("\n")
        for number, queue, sent_at in map(str.split, lines):
            accepted = int(number) in acks[path.stem].places
            notes[queue].append(_Note(Sent(path.stem, int(number), float(sent_at)), accepted))
    return dict(notes)


def _read_results(
    container: Objects, root: str, queue: str, faults: list[str]
) -> tuple[dict[tuple[str, int], int], int]:
    """(producer, number) -> sequence of each message with a row or dead letter; and how many messages are committed."""
    found: dict[tuple[str, int], int] = {}
    results: list[tuple[str, int, int]] = []
    for key, body in sorted(container.items()):
        if key.startswith(f"{root}output/partition={queue}/"):
            rows = [
                row for row in pq.read_table(io.BytesIO(body), use_threads=False).to_pylist() if not is_timer_row(row)
            ]
            results += [(row["producer"], row["number"], row["_sequence"]) for row in rows]
        elif key.startswith(f"{root}dead-letters/partition={queue}/"):
            for letter in map(orjson.loads, body.splitlines()):
                event = orjson.loads(letter["value"])
                results.append((event["producer"], event["number"], letter["sequence"]))
    for producer, number, sequence in results:
        if found.setdefault((producer, number), sequence) != sequence:
            faults.append(f"{producer}'s {number} of queue {queue} has two sequences, the second is {sequence}")
    checkpoint = orjson.loads(container[f"{root}checkpoints/{queue}.json"])
    return found, 1 + max([checkpoint["cursor"][1], *found.values()])


def _put_in_order(
    queue: str, notes: Sequence[_Note], found: Mapping[tuple[str, int], int], count: int, faults: list[str]
) -> list[Sent]:
    """The messages of a queue.

    Args:
        found: those that have a result -> sequence.
        count: of all messages that are committed.
    """
    order, silent = list[Sent](), list[_Note]()
    for note in notes:
        sequence = found.get(note.sent[:2])
        if sequence is None:
            if note.accepted or workload.may_end_silently(*note.sent[:2]):
                silent.append(note)
            continue
        order += _fill(silent, sequence - len(order))
        order.append(note.sent)
        silent.clear()
    faults += [f"{name} is in the output of queue {queue}, and was not sent" for name in _strangers(notes, found)]
    return order + _fill(silent, count - len(order))


def _fill(silent: Sequence[_Note], room: int) -> list[Sent]:
    """All accepted messages of these, and as many other messages as there is room for."""
    others = room - sum(note.accepted for note in silent)
    chosen = []
    for note in silent:
        if not note.accepted:
            others -= 1
        if note.accepted or others >= 0:
            chosen.append(note.sent)
    return chosen


def _strangers(notes: Sequence[_Note], found: Mapping[tuple[str, int], int]) -> set[tuple[str, int]]:
    return found.keys() - {note.sent[:2] for note in notes}
