"""A second processor that forwards the topic of a run to another topic; its hosts are killed, too.

With transactions each record is forwarded once. Without them messages may repeat, and their headers name the record.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random
from types import TracebackType
from typing import Self

import orjson
from confluent_kafka import Message

from actorproc.connectors.kafka.forwarder import PARTITION, SEQUENCE, KafkaForwarder, KafkaMessage
from actorproc.records import Record
from tests.chaos import topic
from tests.chaos.fleet import Child, Fleet, State
from tests.chaos.journal import read_journal
from tests.chaos.place import Place
from tests.chaos.programs import host
from tests.chaos.truth import Sent
from tests.chaos.verdict import Verdict
from tests.chaos.workload import Spoilt, kind_of

PROCESSOR = "Forward"
TARGET = "forwarded"
HOSTS = 3
PACE = 5.0  # mean seconds between two blows
PAUSE = (0.5, 8.0)  # seconds for which a host is stopped; leases expire after two
CATCH_UP = 300.0
"""Seconds in which the last host must forward the remaining rows."""


class UnsteadyForwarder(KafkaForwarder):
    """Forwards records. Some fail always, and some at random: on one attempt and not on another."""

    def __init__(self) -> None:
        self._random = Random()

    def messages(self, record: Record) -> KafkaMessage:
        kind = kind_of(record.json()["producer"], record.json()["number"])
        if kind == "letter" or (kind.startswith("by-") and self._random.random() < 0.6):
            raise Spoilt(f"record {record.sequence} fails")
        return KafkaMessage(record.value, record.key)


class Forwarding:
    """Keeps hosts running that forward the topic. As a context manager it leaves no process behind."""

    is_calm = True

    def __init__(
        self,
        place: Place,
        brokers: str,
        source: str,
        random: Random,
        say: Callable[[str], None],
        *,
        transactions: bool = True,
    ) -> None:
        self._transactions = transactions
        self._place, self._brokers, self._source, self._random, self._say = place, brokers, source, random, say
        self._container = f"{place.container}-forward"
        self._logs = place.folder / "forward-logs"
        self._logs.mkdir()
        self._fleet = Fleet(self._logs)
        self._names = 0
        self._blows: Counter[str] = Counter()
        self._next = time.monotonic() + random.expovariate(1 / PACE)
        self._resume: list[tuple[float, Child]] = []
        self._faults: list[str] = []
        self._sent = self._letters = self._repeated = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._fleet.__exit__(kind, error, trace)

    def tick(self, *, storm: bool) -> None:
        """See that there are hosts; in a storm kill or pause one now and then."""
        self._fleet.reap()
        now = time.monotonic()
        for at, child in self._resume:
            if at < now or not storm:
                child.resume()
        self._resume = [(at, child) for at, child in self._resume if child.state is State.PAUSED]
        for slot in range(HOSTS):
            if not self._fleet.living([slot]):
                self._start(slot)
        if storm and now > self._next:
            self._next = now + self._random.expovariate(1 / PACE)
            self._strike(now)

    def _strike(self, now: float) -> None:
        up = self._fleet.living(range(HOSTS), State.UP)
        if not up:
            return
        child = self._random.choice(up)
        what = self._random.choice(["kill", "pause"])
        self._blows[what] += 1
        self._say(f"{what} {child.name}, which forwards")
        if what == "kill":
            child.kill()
        else:
            child.pause()
            self._resume.append((now + self._random.uniform(*PAUSE), child))

    @property
    def had_enough(self) -> bool:
        return self._blows["kill"] > 0 and self._blows["pause"] > 0

    async def finish(self) -> None:
        """Stop the hosts in good order, let a last one forward the remaining rows, and check the topic."""
        for child in self._fleet.living(range(HOSTS), State.UP):
            child.stop()
        await self._fleet.end(CATCH_UP)
        self._start(0, "--until-end")
        await self._fleet.end(CATCH_UP)
        name = self._source.rpartition("/")[2]
        records = topic.read_records(self._brokers, name, self._faults)
        messages = list(topic.committed_messages(self._brokers, TARGET))
        if not self._transactions:
            messages, self._repeated = without_copies(messages, self._faults)
        sent = Counter(_name(message.value()) for message in messages)
        letters = await self._read_letters()
        self._sent, self._letters = sent.total(), letters.total()
        self._faults += check_forwarded(records, sent, letters, once=self._transactions)

    async def _read_letters(self) -> Counter[tuple[str, int]]:
        letters: Counter[tuple[str, int]] = Counter()
        for key, body in (await self._place.read(self._container)).items():
            if key.startswith(f"{PROCESSOR}/dead-letters/"):
                letters.update(_name(orjson.loads(line)["value"]) for line in body.splitlines())
        return letters

    def judge(self, verdict: Verdict) -> list[str]:
        """The faults of the hosts and of the forwarded messages."""
        bugs = read_journal(sorted(self._logs.glob("*.log"))).bugs
        return [*self._fleet.faults, *bugs, *self._faults]

    @property
    def line(self) -> str:
        return f"{self._blows.total()} blows on the way to the other topic"

    @property
    def summary(self) -> str:
        return (
            f"forwarding: {self._names} hosts, {self._blows['kill']} killed, {self._blows['pause']} paused, "
            f"{self._sent:,} messages{f' and {self._repeated:,} copies' if self._repeated else ''}, "
            f"{self._letters:,} dead letters"
        )

    def _start(self, slot: int, *more: str) -> Child:
        self._names += 1
        name, place = f"f{self._names}", self._place
        arguments = ["--log-level", "debug", "serve", f"{__name__}:{UnsteadyForwarder.__name__}", "--name", PROCESSOR]
        arguments += ["--host", name, "--source", self._source, "--container", self._container]
        options = {"brokers": self._brokers, "topic": TARGET, "timeout": 10, "transactions": self._transactions}
        arguments += [part for name, value in options.items() for part in ("--option", f"{name}={value}")]
        child = self._fleet.start(slot, name, host, place.folder, place.environment(), [*arguments, *more])
        child.until_end = "--until-end" in more
        return child


def without_copies(messages: Sequence[Message], faults: list[str]) -> tuple[list[Message], int]:
    """One message of each pair of headers, and the number of its copies, which must be equal to it."""
    first: dict[tuple[object, object], Message] = {}
    for message in messages:
        headers = dict(message.headers() or ())
        known = first.setdefault((headers[PARTITION], headers[SEQUENCE]), message)
        if (known.key(), known.value()) != (message.key(), message.value()):
            faults.append(f"{headers} names two messages: {known.value()!r} and {message.value()!r}")
    return list(first.values()), len(messages) - len(first)


def check_forwarded(
    records: Mapping[str, Sequence[Sent]],
    sent: Mapping[tuple[str, int], int],
    letters: Mapping[tuple[str, int], int],
    *,
    once: bool = True,
) -> list[str]:
    """Each record is one message or one dead letter, and there is nothing else.

    Args:
        once: False: a record that was sent in an attempt that did not count may also be a dead letter.
    """
    expected = {record[:2] for there in records.values() for record in there}
    faults = [f"{name} was forwarded {times} times" for name, times in sent.items() if times > 1]
    faults += [f"{name} is {times} dead letters" for name, times in letters.items() if times > 1]
    if once:
        faults += [f"{name} was forwarded and is a dead letter" for name in sent.keys() & letters.keys()]
    faults += [f"{name} was not forwarded, and is no dead letter" for name in expected - sent.keys() - letters.keys()]
    return faults + [f"{name} is none of the topic" for name in (sent.keys() | letters.keys()) - expected]


def _name(value: bytes | str | None) -> tuple[str, int]:
    event = orjson.loads(value or b"")
    return event["producer"], event["number"]
