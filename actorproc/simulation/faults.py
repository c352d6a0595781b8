"""A backend with the faults of real stores and networks, decided by a seed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass
from random import Random
from typing import NoReturn, TypeVar

from anyio.lowlevel import checkpoint

from actorproc.errors import StoreError, StoreRefused, StoreUnavailable
from actorproc.runtime.clock import SYSTEM
from actorproc.simulation.loop import current_host, current_loop, start_outside
from actorproc.storage.backend import Backend, Listing, NotModified, Stored

T = TypeVar("T")
Request = Callable[[Backend], Awaitable[T]]
Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Faults:
    """Shares of requests (0 to 1) with each fault, and durations in seconds (least, most)."""

    latency: Range = (0.005, 0.08)
    slow: float = 0.01
    """Answered after `slow_latency`."""
    slow_latency: Range = (1.0, 8.0)
    lost_request: float = 0.01
    """Never applied; no answer."""
    lost_reply: float = 0.01
    """Applied; no answer."""
    late_write: float = 0.005
    """No answer; applied after `lateness`, if its condition holds then."""
    lateness: Range = (5.0, 90.0)
    busy: float = 0.001
    """Starts a `busy_time`, in which most requests are refused with 503 SlowDown."""
    busy_time: Range = (1.0, 10.0)
    silence: Range = (20.0, 40.0)
    """Seconds until the connection of an unanswered request breaks."""


current_sender: ContextVar[tuple[str, float] | None] = ContextVar("current_sender", default=None)
"""Sender of the request that the store behind a FaultyBackend serves now: name of its view, and when it was sent, in
seconds of the world's clock."""


LATENCY_ONLY = Faults(slow=0, lost_request=0, lost_reply=0, late_write=0, busy=0)
"""No faults, only latency."""

_BUSY_REFUSED = 0.8  # share of requests that are refused in a busy time
_RESET = 0.5  # share of unanswered requests whose connection breaks at once, instead of hanging


class FaultyBackend(Backend):
    """The backend `truth`, reached over a network with faults.

    A request travels outside of all hosts: it is applied even if its host pauses or crashes meanwhile. The answer of
    `truth`, or its error, comes back unless the reply is lost.
    """

    def __init__(self, truth: Backend, faults: Faults = LATENCY_ONLY, *, seed: object = 0) -> None:
        self.truth = truth
        """The store without faults, for checks."""
        self.url = truth.url
        self.injected: Counter[str] = Counter()
        """Number of faults in all views, by kind."""
        self._whole = self  # holds the state that its views share
        self._faults = faults
        self._seed = seed
        self._busy_until = self._outage_until = 0.0
        self._views: Counter[str] = Counter()
        self._begin_view("")

    def _begin_view(self, name: str) -> None:
        self._name = name
        self._views[name] += 1
        self._random = Random(f"{self._seed}/store/{name}/{self._views[name]}")  # noqa: S311
        self._cut_until, self._cut_prefix = 0.0, ""
        self.interfere: Callable[[str, str], str | None] | None = None
        """Decides the fate of each request of this view, by verb and key: 'lost_request', 'late_write', 'lost_reply',
        or None for chance. It is called when the request is sent, and may also pause or crash the host."""

    def view(self, name: str) -> FaultyBackend:
        """The same store for another host: with its own faults and cuts, but common busy times and outages."""
        view = copy(self)
        view._begin_view(name)
        return view

    @property
    def faults(self) -> Faults:
        """The faults of all views. May be set at any time."""
        return self._whole._faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._whole._faults = faults

    def outage(self, seconds: float) -> None:
        """Make the store unreachable for so many seconds. Requests that were sent before still arrive."""
        self._whole._outage_until = max(self._whole._outage_until, current_loop().now + seconds)
        self.injected["outage"] += 1

    def cut(self, seconds: float, *, prefix: str = "") -> None:
        """Make the store, or its keys that begin with `prefix`, unreachable for this view for so many seconds."""
        self._cut_until, self._cut_prefix = current_loop().now + seconds, prefix
        self.injected["cut"] += 1

    def heal(self) -> None:
        """End outages, busy times and this view's cut."""
        self._whole._outage_until = self._whole._busy_until = self._cut_until = 0.0

    async def get(self, key: str, *, unless: str | None = None, tail: int | None = None) -> Stored | None:
        return await self._send("get", key, lambda truth: truth.get(key, unless=unless, tail=tail))

    async def put(self, key: str, body: bytes) -> str:
        return await self._send("put", key, lambda truth: truth.put(key, body), writes=True)

    async def put_if_absent(self, key: str, body: bytes) -> str:
        return await self._send("put_if_absent", key, lambda truth: truth.put_if_absent(key, body), writes=True)

    async def put_if_match(self, key: str, body: bytes, tag: str) -> str:
        return await self._send("put_if_match", key, lambda truth: truth.put_if_match(key, body, tag), writes=True)

    async def list(self, prefix: str, after: str = "", limit: int | None = None) -> Listing:
        return await self._send("list", prefix, lambda truth: truth.list(prefix, after, limit))

    async def delete(self, key: str) -> None:
        await self._send("delete", key, lambda truth: truth.delete(key), writes=True)

    async def _send(self, verb: str, key: str, request: Request[T], *, writes: bool = False) -> T:
        """Decide the fate of a request, send it, and wait for the answer."""
        host = current_host()
        if host is not None and not host.alive:
            await checkpoint()  # an endless retry must not stop the virtual time
            raise StoreRefused(f"{self.url}: the simulated host {host.name} is dead")
        faults = self.faults
        now = current_loop().now
        current_sender.set((self._name, now))
        if now < self._whole._outage_until or (now < self._cut_until and key.startswith(self._cut_prefix)):
            await self._no_answer(verb)
        if self._refuses():
            await SYSTEM.sleep(self._between(faults.latency))
            raise StoreUnavailable(f"{self.url}: 503 SlowDown to {verb}")
        match self._fate(verb, key, writes):
            case "lost_request":
                await self._no_answer(verb)
            case "late_write":
                start_outside(self._apply(request, self._between(faults.lateness)))
                await self._no_answer(verb)
            case "lost_reply":
                start_outside(self._apply(request, self._between(faults.latency)))
                await self._no_answer(verb)
        latency = self._between(faults.slow_latency if self._happens("slow") else faults.latency)
        arrives = latency * self._random.random()
        reply: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        start_outside(self._answer(request, arrives, latency - arrives, reply))
        return await reply

    async def _answer(self, request: Request[T], arrives: float, returns: float, reply: asyncio.Future[T]) -> None:
        """Deliver the request, apply it, and return the answer."""
        await SYSTEM.sleep(arrives)
        try:
            answer, error = await request(self.truth), None
        except Exception as raised:  # noqa: BLE001  # for the caller
            answer, error = None, raised
        await SYSTEM.sleep(returns)
        if reply.done():
            return  # the caller gave up
        if error is not None:
            reply.set_exception(error)
        else:
            reply.set_result(answer)  # type: ignore[arg-type]

    async def _apply(self, request: Request[T], arrives: float) -> None:
        """Deliver and apply the request; the answer is lost."""
        await SYSTEM.sleep(arrives)
        with suppress(StoreError, NotModified):
            await request(self.truth)

    async def _no_answer(self, verb: str) -> NoReturn:
        hangs = self._random.random() >= _RESET
        await SYSTEM.sleep(self._between(self.faults.silence if hangs else self.faults.latency))
        raise StoreUnavailable(f"{self.url}: no answer to {verb}")

    def _fate(self, verb: str, key: str, writes: bool) -> str | None:
        if self.interfere is not None and (kind := self.interfere(verb, key)) is not None:
            self.injected[kind] += 1
            return kind
        kinds = ("lost_request", "late_write", "lost_reply") if writes else ("lost_request", "lost_reply")
        return next((kind for kind in kinds if self._happens(kind)), None)

    def _refuses(self) -> bool:
        whole, now = self._whole, current_loop().now
        if self._happens("busy"):
            whole._busy_until = max(whole._busy_until, now + self._between(self.faults.busy_time))
        return now < whole._busy_until and self._random.random() < _BUSY_REFUSED

    def _happens(self, kind: str) -> bool:
        """Whether this request has this fault."""
        share: float = getattr(self.faults, kind)
        happens = self._random.random() < share
        self.injected[kind] += happens
        return happens

    def _between(self, least_most: Range) -> float:
        return self._random.uniform(*least_most)
