"""Signals of one run in a program that has handlers of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import anyio

from actorproc.clock import SYSTEM
from actorproc.signals import Signals


async def test_a_signal_that_another_thread_takes_is_heard_at_once() -> None:
    def send() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    signals = Signals(SYSTEM, lambda: None)
    with anyio.fail_after(60), signals.obeyed():
        signals.started()
        asyncio.get_running_loop().call_later(0.05, threading.Thread(target=send).start)
        await signals.wait()


async def test_what_the_program_has_arranged_for_signals_holds_again_afterwards() -> None:
    loop, heard = asyncio.get_running_loop(), anyio.Event()
    loop.add_signal_handler(signal.SIGTERM, heard.set)
    try:
        with Signals(SYSTEM, lambda: None).obeyed():
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        with anyio.fail_after(10):
            await heard.wait()
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


async def test_of_two_runs_at_once_the_outer_hears_after_the_inner_has_ended() -> None:
    outer = Signals(SYSTEM, lambda: None)
    with anyio.fail_after(10), outer.obeyed():
        outer.started()
        with Signals(SYSTEM, lambda: None).obeyed():
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        await outer.wait()
