"""A store that fails as stores and networks do: slowly, silently, late, in bursts; by seed, around any backend."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from random import Random
from typing import NoReturn, TypeVar

from anyio.lowlevel import checkpoint

from actorproc.errors import StoreError, StoreRefused, StoreUnavailable
from actorproc.runtime.clock import SYSTEM
from actorproc.storage.backend import Backend, Listing, NotModified, Stored
from actorproc.testing.simulation.loop import current_host, current_loop, start_outside

T = TypeVar("T")
Request = Callable[[Backend], Awaitable[T]]
Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Faults:
    """What may go wrong, as a share of requests (0 to 1), and how long it takes, in seconds (least, most)."""

    latency: Range = (0.005, 0.08)
    slow: float = 0.01
    """Answered, but after `slow_latency`."""
    slow_latency: Range = (1.0, 8.0)
    lost_request: float = 0.01
    """Never applied; no answer."""
    lost_reply: float = 0.01
    """Applied; no answer."""
    late_write: float = 0.005
    """No answer; applied after `lateness`, if its condition holds then."""
    lateness: Range = (5.0, 90.0)
    busy: float = 0.001
    """Starts `busy_time` during which most requests are turned away, as with 503 SlowDown."""
    busy_time: Range = (1.0, 10.0)
    silence: Range = (20.0, 40.0)
    """How long a caller without an answer waits before its connection is given up, if it does not give up earlier."""


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sent a request. `view`: its name; `sent`: seconds, by the clock of the world."""

    view: str
    sent: float


_sender: ContextVar[Sender | None] = ContextVar("_sender", default=None)


def current_sender() -> Sender | None:
    """For the store behind a FaultyBackend: whose request it serves right now."""
    return _sender.get()


LATENCY_ONLY = Faults(slow=0, lost_request=0, lost_reply=0, late_write=0, busy=0)
"""Latency, nothing else."""

_TURNED_AWAY = 0.8  # share of requests in a busy time
_RESET = 0.5  # share of unanswered requests whose connection breaks at once, instead of hanging


class _World:
    """What all views of one store have in common."""

    def __init__(self, truth: Backend, faults: Faults, seed: object) -> None:
        self.truth = truth
        self.faults = faults
        self.seed = seed
        self.injected: Counter[str] = Counter()
        self.busy_until = self.outage_until = 0.0
        self.views: Counter[str] = Counter()


class FaultyBackend(Backend):
    """`truth`, seen over a network that fails.

    A request is under way outside of all hosts: whatever becomes of the host that sent it, cancelled, paused or dead,
    it arrives or it does not. What `truth` answers, errors included, comes back unless the reply is lost.
    """

    def __init__(self, truth: Backend, faults: Faults = LATENCY_ONLY, *, seed: object = 0) -> None:
        self._join(_World(truth, faults, seed), "")

    def _join(self, world: _World, name: str) -> None:
        self._world = world
        self._name = name
        world.views[name] += 1
        self._random = Random(f"{world.seed}/store/{name}/{world.views[name]}")  # noqa: S311
        self._cut_until, self._cut_prefix = 0.0, ""
        self.interfere: Callable[[str, str], str | None] | None = None
        """Asked about each request of this view, by verb and key: 'lost_request', 'late_write', 'lost_reply', or None to
        leave it to chance. May do other harm as well: it is called at the moment when the request goes out."""
        self.url = world.truth.url

    def view(self, name: str) -> FaultyBackend:
        """The same store as another host sees it: other faults, own cuts; busy times and outages hit all views."""
        view = object.__new__(FaultyBackend)
        view._join(self._world, name)
        return view

    @property
    def truth(self) -> Backend:
        """The store itself, for those who check."""
        return self._world.truth

    @property
    def faults(self) -> Faults:
        """What may go wrong from now on; for all views. May be set."""
        return self._world.faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._world.faults = faults

    @property
    def injected(self) -> Counter[str]:
        """How often each kind of fault has happened, in all views."""
        return self._world.injected

    def outage(self, seconds: float) -> None:
        """Nobody reaches the store for so long. What is under way already arrives."""
        self._world.outage_until = max(self._world.outage_until, current_loop().now + seconds)
        self.injected["outage"] += 1

    def cut(self, seconds: float, *, prefix: str = "") -> None:
        """This view does not reach the store for so long, or only its keys that start with `prefix`."""
        self._cut_until, self._cut_prefix = current_loop().now + seconds, prefix
        self.injected["cut"] += 1

    def heal(self) -> None:
        """End outages and busy times, and this view's cut."""
        self._world.outage_until = self._world.busy_until = self._cut_until = 0.0

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
        """Decide the fate of a request, let it go, and wait for what comes back."""
        host = current_host()
        if host is not None and not host.alive:
            await checkpoint()  # who asks on and on must not stop the world
            raise StoreRefused(f"{self.url}: the simulated host {host.name} is dead")
        faults = self._world.faults
        now = current_loop().now
        _sender.set(Sender(self._name, now))
        if now < self._world.outage_until or (now < self._cut_until and key.startswith(self._cut_prefix)):
            await self._no_answer(verb)
        if self._turned_away():
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
        latency = self._between(faults.slow_latency if self._strikes("slow") else faults.latency)
        arrives = latency * self._random.random()
        reply: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        start_outside(self._answer(request, arrives, latency - arrives, reply))
        return await reply

    async def _answer(self, request: Request[T], arrives: float, returns: float, reply: asyncio.Future[T]) -> None:
        """The way there, the store's work, the way back."""
        await SYSTEM.sleep(arrives)
        try:
            answer, error = await request(self.truth), None
        except Exception as raised:  # noqa: BLE001  # whatever the store says is for the caller
            answer, error = None, raised
        await SYSTEM.sleep(returns)
        if reply.done():
            return  # the caller has given up
        if error is not None:
            reply.set_exception(error)
        else:
            reply.set_result(answer)  # type: ignore[arg-type]

    async def _apply(self, request: Request[T], arrives: float) -> None:
        """The way there and the store's work; nobody hears of it."""
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
        return next((kind for kind in kinds if self._strikes(kind)), None)

    def _turned_away(self) -> bool:
        world, now = self._world, current_loop().now
        if self._strikes("busy"):
            world.busy_until = max(world.busy_until, now + self._between(self.faults.busy_time))
        return now < world.busy_until and self._random.random() < _TURNED_AWAY

    def _strikes(self, kind: str) -> bool:
        """Whether this fault happens to this request."""
        share: float = getattr(self.faults, kind)
        struck = self._random.random() < share
        self.injected[kind] += struck
        return struck

    def _between(self, least_most: Range) -> float:
        return self._random.uniform(*least_most)
