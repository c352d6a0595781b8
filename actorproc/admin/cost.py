"""The cost of a processor on S3: its requests, computed from settings and load, and list prices. A pure function.

`tests/test_cost.py` compares it with counted runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from actorproc.config.settings import Settings
from actorproc.partition.committer import CHECKPOINT_EVERY
from actorproc.produce.hint_writer import HINT_INTERVAL

Verb = Literal["PUT", "GET", "LIST"]

MONTH = 30 * 86_400.0
"""Seconds of a month."""


class Price(NamedTuple):
    """Dollars per request. Storage, and bytes that leave the region, cost extra."""

    store: str
    put: float
    get: float
    list: float

    def of(self, verb: Verb) -> float:
        """Dollars for one request."""
        return {"PUT": self.put, "GET": self.get, "LIST": self.list}[verb]


PRICES = (Price("S3 Standard", put=5e-6, get=4e-7, list=5e-6),)
"""List prices in us-east-1, as of April 2025. Not of S3 Express One Zone: its listings have no order of keys, so that
actorproc cannot use it."""

PRICES_FROM = "list prices of us-east-1 since April 2025 (https://aws.amazon.com/s3/pricing)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load of a processor."""

    hosts: int
    partitions: int
    records: float = 0.0
    """Per second, over all partitions, which get equally many, at random times."""
    log: bool = True
    """Whether the source is a built-in log, with one producer."""
    linger: float = 0.2
    """Seconds for which that producer collects records."""
    state: bool = False
    """Whether each commit changes keyed state."""


class Requests(NamedTuple):
    """Requests of one kind. `rate`: per second, of all hosts and the producer together."""

    purpose: str
    verb: Verb
    rate: float

    @property
    def per_month(self) -> float:
        return self.rate * MONTH

    def dollars(self, price: Price) -> float:
        """Per month."""
        return self.per_month * price.of(self.verb)


def requests(load: Load, settings: Settings) -> list[Requests]:
    """The requests, without starts, rebalances, retries, dead letters and readers of the output."""
    return [*_group(load, settings), *_log(load, settings), *_commits(load, settings)]


def cost_document(found: Sequence[Requests]) -> dict[str, Any]:
    """Requests and dollars per month, by purpose and in sum: the JSON shape in docs/cli.md, a public contract."""
    kinds = [
        {"purpose": each.purpose, "verb": each.verb, "requests": round(each.per_month),
         "dollars": {price.store: round(each.dollars(price), 4) for price in PRICES}}
        for each in found
    ]  # fmt: skip
    return {
        "per_month": kinds, "requests": round(sum(each.per_month for each in found)), "prices": PRICES_FROM,
        "dollars": {price.store: round(sum(each.dollars(price) for each in found), 2) for price in PRICES},
    }  # fmt: skip


def _group(load: Load, settings: Settings) -> Iterator[Requests]:
    yield Requests("heartbeats", "PUT", load.hosts / settings.lease_renew_interval)
    yield Requests("looks at the heartbeats", "LIST", load.hosts / settings.lease_acquire_interval)
    yield Requests("looks at the leases", "GET", load.hosts / settings.lease_acquire_interval)
    if settings.history_interval:
        yield Requests("histories", "PUT", load.hosts / settings.history_interval)


def _log(load: Load, settings: Settings) -> Iterator[Requests]:
    if not load.log:
        return
    yield Requests("polls of the log", "LIST", load.hosts / settings.poll_interval)
    yield Requests("looks at its partitions", "GET", load.hosts / settings.partition_refresh_interval)
    if not load.records:
        return
    appends = 1 / (load.linger + load.partitions / load.records)  # per partition and second
    every = max(settings.poll_interval, HINT_INTERVAL)  # a reader hears of new files so often at most
    wakes = -math.expm1(-appends * every) / every  # of a reader, per second: there may be nothing new
    hints = 1 / (HINT_INTERVAL + 1 / (load.partitions * appends))
    yield Requests("appends of the producer", "PUT", load.partitions * appends)
    yield Requests("hints of the producer", "PUT", hints)
    yield Requests("hints read", "GET", load.hosts * min(hints, 1 / settings.poll_interval))
    yield Requests("files read", "GET", load.partitions * appends)
    yield Requests("looks for the next file", "GET", load.partitions * wakes)
    yield Requests("listings of files to read", "LIST", load.partitions * wakes * _listings(appends / wakes))


def _listings(files: float) -> float:
    """LIST requests of a reader that finds so many new files: it lists if there are more than three, as counted."""
    return min(1.0, max(0.0, files - 3) / 6)


def _commits(load: Load, settings: Settings) -> Iterator[Requests]:
    if not load.records:
        return
    noticed = settings.poll_interval / 2 if load.log else 0.0  # the first record after a commit waits for a poll
    commits = load.partitions / (settings.commit_interval + load.partitions / load.records + noticed)
    yield Requests("commits", "PUT", commits)
    yield Requests("checkpoints", "PUT", commits / CHECKPOINT_EVERY)
    if load.state:
        yield Requests("keyed state", "PUT", commits + commits / CHECKPOINT_EVERY)
