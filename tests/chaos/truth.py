"""The input: every record of the log, compared with the records and acknowledgements of its producers."""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import orjson
import pyarrow.parquet as pq

from tests.chaos.objects import Objects
from tests.chaos.workload import key_of, value_of


class Sent(NamedTuple):
    """A record of the log. `time`: when it was sent, seconds since 1970."""

    producer: str
    number: int
    time: float


@dataclass
class Acks:
    """The acknowledgements of a producer: number -> (partition, sequence). `count`: of records sent, if it ended in
    good order."""

    places: dict[int, tuple[str, int]] = field(default_factory=dict)
    count: int | None = None


def read_acks(folder: Path) -> dict[str, Acks]:
    """Acknowledgements by producer. The last line of a killed producer may be torn: it does not count."""
    found = {}
    for path in sorted(folder.glob("*.acks")):
        acks = found[path.stem] = Acks()
        *lines, _ = path.read_bytes().split(b"\n")
        for line in lines:
            match line.decode().split():
                case ["done", count]:
                    acks.count = int(count)
                case [number, partition, sequence]:
                    acks.places[int(number)] = (partition, int(sequence))
    return found


def read_log(log: Objects, faults: list[str]) -> dict[str, list[Sent]]:
    """The records by partition; the place in the list is the sequence. Adds each broken expectation to `faults`."""
    records: defaultdict[str, list[Sent]] = defaultdict(list)
    for key, body in log.items():
        folder, _, name = key.partition("/")
        if not folder.startswith("partition="):
            if key not in ("log.json", "readers.json") and not key.startswith("heads/"):
                faults.append(f"{key} does not belong into a log")
            continue
        partition = folder.removeprefix("partition=")
        there = records[partition]
        if name != f"{len(there):020d}.parquet":
            faults.append(f"{key} is in a log whose next sequence is {len(there)}")
        table = pq.read_table(io.BytesIO(body), use_threads=False)
        for sent_key, value, time in zip(
            table["key"].to_pylist(), table["value"].to_pylist(), table["timestamp"].to_pylist(), strict=True
        ):
            event = orjson.loads(value)
            sent = Sent(event["producer"], event["number"], time.timestamp())
            if (sent_key, value) != (key_of(*sent[:2]), value_of(*sent[:2])):
                faults.append(f"{key} holds a record that nobody sent: key {sent_key!r}, value {value!r}")
            there.append(sent)
    return dict(records)


def check_log(records: Mapping[str, list[Sent]], acks: Mapping[str, Acks]) -> list[str]:
    """An acknowledged record is in the log once, at its place; any other at most once. Order was kept."""
    faults = []
    times: Counter[tuple[str, int]] = Counter()
    newest: dict[tuple[str, str], int] = {}
    for partition, sents in records.items():
        for sequence, (producer, number, _) in enumerate(sents):
            times[producer, number] += 1
            before = newest.get((partition, producer), -1)
            if number <= before:
                faults.append(
                    f"log partition {partition}, sequence {sequence}: {producer}'s {number} comes after its {before}"
                )
            newest[partition, producer] = number
    faults += [f"{producer}'s {number} is in the log {n} times" for (producer, number), n in times.items() if n > 1]
    for producer, told in acks.items():
        for number, (partition, sequence) in told.places.items():
            sents = records.get(partition, [])
            if sequence >= len(sents) or sents[sequence][:2] != (producer, number):
                where = f"log partition {partition}, sequence {sequence}"
                faults.append(f"{producer} was told that its {number} is at {where}; it is not")
        if told.count is not None:
            missing = set(range(told.count)) - told.places.keys()
            if missing:
                faults.append(
                    f"{producer} ended in good order with {len(missing)} unacknowledged: {sorted(missing)[:5]}"
                )
    strangers = {producer for producer, _ in times} - acks.keys()
    faults += [f"{producer} is in the log and is none of ours" for producer in sorted(strangers)]
    return faults
