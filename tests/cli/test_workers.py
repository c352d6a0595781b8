"""The supervision of worker processes, tested without real processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from actorproc.cli.exit_codes import REACHED_END
from actorproc.cli.serve import _supervise
from actorproc.cli.workers import Workers
from actorproc.runtime.backoff import Backoff


class Process:
    """Like anyio's, but the test ends it. `ended`: it has ended, and no waiter was resumed yet."""

    pid = 1

    def __init__(self, name: str) -> None:
        self.ended = name == "ended"
        self._exit = anyio.Event()

    async def __aenter__(self) -> Process:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def send_signal(self, number: signal.Signals) -> None:
        self._exit.set()
        if self.ended:
            raise ProcessLookupError

    async def wait(self) -> int:
        await self._exit.wait()
        return 0


def test_a_signal_while_the_hosts_end_begins_no_query(monkeypatch: pytest.MonkeyPatch) -> None:
    class AtTheEnd(Process):
        async def wait(self) -> int:
            await super().wait()
            return REACHED_END

    started: list[str] = []

    async def open_process(command: list[str], *, env: Mapping[str, str], **_: Any) -> Process:
        started.extend(command)
        os.kill(os.getpid(), signal.SIGTERM)
        return AtTheEnd(*command)

    monkeypatch.setattr(anyio, "open_process", open_process)
    assert _supervise({"host": ["host"]}, "query", ["spark"], until_end=True, processor="p") == 1
    assert started == ["host"]


@pytest.mark.parametrize("order", [["ended", "busy"], ["busy", "ended"]])
async def test_a_signal_reaches_all_workers_though_one_has_just_ended(
    order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    async def open_process(command: list[str], *, env: Mapping[str, str], **_: Any) -> Process:
        started.extend(command)
        if len(started) == len(order):
            os.kill(os.getpid(), signal.SIGTERM)
        return Process(*command)

    monkeypatch.setattr(anyio, "open_process", open_process)
    with anyio.fail_after(60):
        assert await Workers({name: [name] for name in order}, until_end=True).run() == 0
    assert sorted(started) == sorted(order)


class Ending:
    """A process that ends at once."""

    pid = 1

    def __init__(self, code: int) -> None:
        self._code = code

    async def __aenter__(self) -> Ending:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def send_signal(self, number: signal.Signals) -> None:
        raise ProcessLookupError

    async def wait(self) -> int:
        return self._code


async def test_wrong_use_ends_all_workers_only_at_the_first_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    codes: list[int] = [-signal.SIGKILL, 2, 0]
    busy = Process("busy")

    async def open_process(command: list[str], **_: Any) -> Process | Ending:
        if command == ["busy"]:
            return busy
        if len(codes) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return Ending(codes.pop(0)) if codes else Process("started once more before the signal was heard")

    monkeypatch.setattr(anyio, "open_process", open_process)
    monkeypatch.setattr("actorproc.cli.workers._BACKOFF", Backoff(0.001, 0.001))
    with anyio.fail_after(60):
        assert await Workers({"busy": ["busy"], "dies": ["dies"]}, until_end=False).run() == 0
    assert codes == []


async def test_wrong_use_at_the_first_start_stops_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def open_process(command: list[str], **_: Any) -> Process | Ending:
        return Process("busy") if command == ["busy"] else Ending(2)

    monkeypatch.setattr(anyio, "open_process", open_process)
    with anyio.fail_after(60):
        assert await Workers({"busy": ["busy"], "wrong": ["wrong"]}, until_end=False).run() == 2


class Draining(Process):
    """Ends at the command of the test; notes each signal."""

    def __init__(self) -> None:
        super().__init__("draining")
        self.heard: list[signal.Signals] = []

    def send_signal(self, number: signal.Signals) -> None:
        self.heard.append(number)

    def end(self) -> None:
        self._exit.set()


async def test_a_signal_to_process_and_group_is_one_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    draining, started = Draining(), anyio.Event()

    async def open_process(_: list[str], **__: Any) -> Process:
        started.set()
        return draining

    monkeypatch.setattr(anyio, "open_process", open_process)
    codes: list[int] = []
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:

            async def work() -> None:
                codes.append(await Workers({"a": ["a"]}, until_end=False).run())

            tasks.start_soon(work)
            await started.wait()
            os.kill(os.getpid(), signal.SIGTERM)
            while not draining.heard:
                await anyio.sleep(0.001)
            os.kill(os.getpid(), signal.SIGTERM)
            await anyio.sleep(0.01)
            draining.end()
    assert draining.heard == [signal.SIGTERM]
    assert codes == [0]


async def test_a_worker_that_is_just_being_started_hears_of_the_stop_too(monkeypatch: pytest.MonkeyPatch) -> None:
    draining, starting, go_on = Draining(), anyio.Event(), anyio.Event()

    async def open_process(_: list[str], **__: Any) -> Process:
        starting.set()
        await go_on.wait()
        return draining

    monkeypatch.setattr(anyio, "open_process", open_process)
    workers = Workers({"a": ["a"]}, until_end=False)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(workers.run)
            await starting.wait()
            workers.stop(signal.SIGINT)
            go_on.set()
            while not draining.heard:
                await anyio.sleep(0.001)
            draining.end()
    assert draining.heard == [signal.SIGINT]


async def test_a_worker_that_cannot_be_started_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draining, tries = Draining(), list[str]()

    async def open_process(command: list[str], **_: Any) -> Process:
        if command == ["busy"]:
            return draining
        tries.append(*command)
        if len(tries) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
            draining.end()
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(anyio, "open_process", open_process)
    monkeypatch.setattr("actorproc.cli.workers._BACKOFF", Backoff(0.001, 0.001))
    with anyio.fail_after(60):
        assert await Workers({"busy": ["busy"], "new": ["new"]}, until_end=False).run() == 0
    assert len(tries) == 3
