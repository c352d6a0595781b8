"""Signals of runs in a program with signal handlers of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading

import anyio

from actorproc.errors import UsageError
from actorproc.runtime.clock import SYSTEM
from actorproc.runtime.signals import Signals


async def test_a_signal_that_another_thread_receives_is_handled_at_once() -> None:
    def send() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    signals = Signals(SYSTEM, lambda: None)
    with anyio.fail_after(60), signals.handled():
        signals.started()
        asyncio.get_running_loop().call_later(0.05, threading.Thread(target=send).start)
        await signals.wait()


async def test_the_programs_signal_handlers_are_restored() -> None:
    loop, heard = asyncio.get_running_loop(), anyio.Event()
    loop.add_signal_handler(signal.SIGTERM, heard.set)
    try:
        with Signals(SYSTEM, lambda: None).handled():
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        with anyio.fail_after(10):
            await heard.wait()
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


async def test_an_outer_run_handles_signals_after_an_inner_one_ended() -> None:
    outer = Signals(SYSTEM, lambda: None)
    with anyio.fail_after(10), outer.handled():
        outer.started()
        with Signals(SYSTEM, lambda: None).handled():
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        await outer.wait()


async def test_a_run_handles_signals_although_the_program_set_its_own_handlers() -> None:
    later = Signals(SYSTEM, lambda: None)
    before = signal.getsignal(signal.SIGTERM)
    with anyio.fail_after(10), Signals(SYSTEM, lambda: None).handled():
        signal.signal(signal.SIGTERM, lambda *_: None)
        with later.handled():
            later.started()
            os.kill(os.getpid(), signal.SIGTERM)
            await later.wait()
    assert signal.getsignal(signal.SIGTERM) is before


async def test_several_runs_in_one_process_all_handle_signals() -> None:
    before = signal.getsignal(signal.SIGTERM)
    runs = [Signals(SYSTEM, lambda: None) for _ in range(3)]
    ends = [anyio.Event() for _ in runs]

    async def run(signals: Signals, end: anyio.Event) -> None:
        with signals.handled():
            signals.started()
            await end.wait()

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            for signals, end in zip(runs, ends, strict=True):
                tasks.start_soon(run, signals, end)
            await anyio.wait_all_tasks_blocked()
            ends[0].set()
            await anyio.wait_all_tasks_blocked()
            os.kill(os.getpid(), signal.SIGTERM)
            for signals in runs[1:]:
                await signals.wait()
            ends[1].set()
            ends[2].set()
    assert signal.getsignal(signal.SIGTERM) is before


# In a process of its own, which has one thread: forking any other is not safe.
FORKS = """
import asyncio, os, signal, time
import anyio
from actorproc.runtime.clock import SYSTEM
from actorproc.runtime.signals import Signals

async def main():
    signals, (begun, begins) = Signals(SYSTEM, lambda: None), os.pipe()
    with signals.handled():
        signals.started()
        if (child := os.fork()) == 0:
            os.write(begins, b"!")
            time.sleep(5)
            os._exit(0)
        os.read(begun, 1)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        with anyio.move_on_after(0.1):
            await signals.wait()
            print("the run stops, too")
    print("ended by", os.WTERMSIG(status))

asyncio.run(main())
"""


def test_sigterm_ends_a_forked_process_and_not_the_run() -> None:
    forks = subprocess.run([sys.executable, "-c", FORKS], stdout=subprocess.PIPE, text=True, check=True)
    assert forks.stdout == f"ended by {signal.SIGTERM:d}\n"


def test_signals_are_refused_outside_the_main_thread() -> None:
    found: list[str] = []

    def run() -> None:
        try:
            Signals(SYSTEM, lambda: None)
        except UsageError as error:
            found.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "works in Python's main thread only" in found[0]
