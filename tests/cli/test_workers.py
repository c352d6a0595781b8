"""What becomes of worker processes, seen without any."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from actorproc.cli.workers import Workers


class Process:
    """As anyio's, but it ends when the test says so. `ended`: it has, and nobody was told yet."""

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
