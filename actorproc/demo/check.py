"""Compares the answers of Spark and Polars, and the dead letters, with the CSV."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio
import msgspec
import orjson

from actorproc.demo import DemoFailed
from actorproc.demo.data import CarrierDelay, Truth

LAST_LINES = 20
"""Lines of Spark's log shown when it fails."""


@dataclass(frozen=True, slots=True)
class Letters:
    """The published dead letters. `repeated`: how many (partition, sequence) have more than one."""

    count: int
    repeated: int
    types: dict[str, int]


@dataclass(frozen=True, slots=True)
class Answer:
    """A reader's summary of the dataset. `repeated`: how many (partition, _sequence) have more than one row."""

    rows: int
    repeated: int
    carriers: list[CarrierDelay]


async def ask_spark(command: Sequence[str], log: Path) -> Answer:
    """Run Spark in a process of its own; its stderr goes to `log`.

    Raises:
        DemoFailed: it failed; shows the end of the log.
    """
    with log.open("wb") as file:
        process = await anyio.run_process(command, stderr=file, check=False, start_new_session=True)
    if process.returncode != 0:
        code = process.returncode
        raise DemoFailed(f"Spark could not read the dataset (exit code {code}); the end of {log}:{_end_of(log)}")
    return msgspec.json.decode(process.stdout, type=Answer)


def _end_of(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "".join(f"\n  {line}" for line in lines[-LAST_LINES:])


def count_letters(folder: Path) -> Letters:
    """Read every published dead letter below `folder`."""
    seen: Counter[tuple[str, int]] = Counter()
    types: Counter[str] = Counter()
    for file in sorted(folder.glob("partition=*/*.jsonl")):
        for line in file.read_bytes().splitlines():
            letter = orjson.loads(line)
            seen[letter["partition"], letter["sequence"]] += 1
            types[letter["error"]["type"]] += 1
    return Letters(seen.total(), sum(times > 1 for times in seen.values()), dict(types))


def find_faults(truth: Truth, answer: Answer, letters: Letters, reader: str = "Spark") -> list[str]:
    """One sentence for each fault; none if every departure was counted exactly once.

    Args:
        reader: who has answered.
    """
    faults = []
    both = pairs(truth.carriers, answer.carriers)
    if differ := [(expected, found) for expected, found in both if expected != found]:
        expected, found = differ[0]
        faults.append(
            f"the tables differ in {len(differ)} of {len(both)} carriers, "
            f"first: the CSV says {_line(expected)}, {reader} says {_line(found)}"
        )
    if answer.rows + letters.count != truth.events:
        sum_ = answer.rows + letters.count
        faults.append(
            f"{answer.rows:,} rows and {letters.count:,} dead letters are {sum_:,}, "
            f"but {truth.events:,} events were sent"
        )
    if letters.count != truth.never_departed:
        faults.append(f"{letters.count:,} dead letters, but {truth.never_departed:,} flights never departed")
    if answer.repeated:
        faults.append(f"{answer.repeated:,} (partition, _sequence) have more than one row")
    if letters.repeated:
        faults.append(f"{letters.repeated:,} (partition, sequence) have more than one dead letter")
    return faults


def pairs(
    expected: Sequence[CarrierDelay], found: Sequence[CarrierDelay]
) -> list[tuple[CarrierDelay | None, CarrierDelay | None]]:
    """The expected and the found line of each carrier, by carrier."""
    left, right = ({line.carrier: line for line in lines} for lines in (expected, found))
    return [(left.get(carrier), right.get(carrier)) for carrier in sorted(left.keys() | right.keys())]


def _line(line: CarrierDelay | None) -> str:
    return f"{line.carrier} ({line.name}) {line.flights:,} flights, mean {line.mean!r}" if line else "nothing"
