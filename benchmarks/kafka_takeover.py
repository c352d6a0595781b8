"""One of four hosts that share 200 partitions of a Kafka topic is killed: who waits, and how long.

Four host processes, a process that feeds the topic, a real broker; folder store. Leases decide who reads, so nobody
rebalances: the partitions of the other hosts go on, and those of the dead host go on once its leases have expired.
Goals: the longest gap between two batches of an unaffected partition is no longer than without the kill; the dead
host's partitions go on within the expiration plus one acquire interval.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import anyio
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.table import Table

from actorproc import Processor
from actorproc.config.settings import Settings
from actorproc.connectors.kafka import KafkaSource
from benchmarks.processes import only_warnings
from benchmarks.rebalance import Diary, Note, longest_gaps, open_partitions, read_diary, write_note
from tests.connectors.kafka.server import kafka

TOPIC = "events"
HOSTS = ("a", "b", "c", "d")
VICTIM = "d"
FEED_EVERY = 0.5  # seconds between two records of a partition
PATIENCE = 180.0  # seconds after which a step counts as failed

spawn = multiprocessing.get_context("spawn")


def host(name: str, folder: Path, brokers: str, timers: Mapping[str, Any]) -> None:
    """A host process, until it is killed."""
    only_warnings()
    diary = os.open(folder / f"{name}.diary", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    processor = Processor(
        Diary, source=KafkaSource(f"kafka://{brokers}/{TOPIC}"), container=str(folder / "state"), host=name,
        options={"diary": diary}, settings=Settings(**timers),
    )  # fmt: skip
    write_note(diary, Note("joining", time.perf_counter()))
    anyio.run(lambda: processor.run(signals=True))


def feed(brokers: str, partitions: int) -> None:
    """Send a record to every partition twice a second, until killed."""
    producer = Producer({"bootstrap.servers": brokers, "linger.ms": 5})
    due = time.perf_counter()
    while True:
        for number in range(partitions):
            producer.produce(TOPIC, b"{}", partition=number)
        producer.flush()
        due += FEED_EVERY
        time.sleep(max(0.0, due - time.perf_counter()))


def run(partitions: int = 200, window: float = 90.0, expiration: float | None = None) -> None:
    """Print the table.

    Args:
        window: seconds for which the hosts are watched before the kill, and after it.
        expiration: of a lease; other timers in proportion. Default: the defaults.
    """
    share = 1.0 if expiration is None else expiration / Settings().lease_expiration_interval
    names = ("lease_renew_interval", "lease_acquire_interval", "lease_expiration_interval")
    timers = {name: getattr(Settings(), name) * share for name in names}
    console = Console()
    with tempfile.TemporaryDirectory(prefix="actorproc-bench-") as name:
        folder = Path(name)
        (folder / "broker").mkdir()
        with kafka(folder / "broker") as broker:
            client = AdminClient({"bootstrap.servers": broker.address})
            client.create_topics([NewTopic(TOPIC, partitions, 1)])[TOPIC].result(60)
            processes: dict[str, BaseProcess] = {
                name: spawn.Process(target=host, args=(name, folder, broker.address, timers), daemon=True)
                for name in HOSTS
            }
            feeder = spawn.Process(target=feed, args=(broker.address, partitions), daemon=True)
            try:
                killed = _play(console, folder, processes, feeder, partitions, window)
                _print(console, {name: read_diary(folder, name) for name in HOSTS}, killed, window, timers)
            finally:
                for process in (*processes.values(), feeder):
                    process.kill()
                    process.join()


def _play(
    console: Console,
    folder: Path,
    processes: Mapping[str, BaseProcess],
    feeder: BaseProcess,
    partitions: int,
    window: float,
) -> float:
    """When the victim was killed."""
    with console.status("four hosts, busy") as status:
        feeder.start()
        for process in processes.values():
            process.start()
        _wait_until_even(folder, partitions)
        time.sleep(window)
        status.update("one is killed")
        processes[VICTIM].kill()
        killed = time.perf_counter()
        time.sleep(window)
    return killed


def _wait_until_even(folder: Path, partitions: int) -> None:
    give_up = time.perf_counter() + PATIENCE
    while time.perf_counter() < give_up:
        time.sleep(0.5)
        diaries = [read_diary(folder, name) for name in HOSTS if (folder / f"{name}.diary").exists()]
        if [open_partitions(notes) for notes in diaries] == [partitions // len(HOSTS)] * len(HOSTS):
            return
    raise TimeoutError(f"the hosts do not share {partitions} partitions evenly after {PATIENCE:g} s")


def _print(
    console: Console, diaries: Mapping[str, list[Note]], killed: float, window: float, timers: Mapping[str, float]
) -> None:
    lost = {note.partition for note in diaries[VICTIM] if note.what == "batch" and note.at > killed - 5}
    others = [note for name, notes in diaries.items() if name != VICTIM for note in notes]
    others.sort(key=lambda note: note.at)
    stay = {note.partition for note in others if note.partition} - lost
    before = longest_gaps(others, stay, killed - window, killed)
    after = longest_gaps(others, stay, killed, killed + window)
    resumed = [
        next((n.at for n in others if n.partition == partition and n.what == "batch" and n.at > killed), None)
        for partition in sorted(lost)
    ]
    waits = [at - killed for at in resumed if at is not None]
    bar = timers["lease_expiration_interval"] + timers["lease_acquire_interval"]
    table = Table(title=f"{len(stay) + len(lost)} partitions, {len(HOSTS)} hosts, one killed; seconds")
    for heading in ("", "partitions", "median", "longest", "bar"):
        table.add_column(heading, justify="right" if heading else "left")
    rows = (
        ("unaffected: longest from batch to batch, without the kill", before, None),
        (f"the same in the {window:g} s after the kill", after, max(before)),
        ("of the dead host: from the kill to the next batch", waits, bar),
    )
    for what, found, limit in rows:
        good = limit is None or max(found) <= limit * 1.1
        longest = f"[{'green' if good else 'red'}]{max(found):.2f}[/]"
        table.add_row(
            what, str(len(found)), f"{statistics.median(found):.2f}", longest, "" if limit is None else f"{limit:.1f}"
        )
    console.print(table)
    if len(waits) < len(lost):
        console.print(f"[red]{len(lost) - len(waits)} partitions of the dead host did not go on in {window:g} s[/]")
    console.print(
        f"A record each {FEED_EVERY:g} s. Expiration {timers['lease_expiration_interval']:g} s, acquire "
        f"interval {timers['lease_acquire_interval']:g} s. Load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores."
    )


if __name__ == "__main__":
    run()
