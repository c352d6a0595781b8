"""The logs of the processes: counts of events, and everything that looks like a bug."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from tests.chaos.deliveries import DELIVERED

STORM = 200
"""Warnings of one kind from one process that are too many."""


@dataclass
class Journal:
    """`events`: count by event, of all but debug; `moves`: count of leases that changed hands, by how; `bugs`:
    tracebacks."""

    events: Counter[str] = field(default_factory=Counter)
    moves: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    """Of partitions, by type of error."""
    deliveries: Counter[str] = field(default_factory=Counter)
    """By sink; of a table its transactions."""
    sink_errors: Counter[str] = field(default_factory=Counter)
    """By sink."""
    bugs: list[str] = field(default_factory=list)
    storms: list[str] = field(default_factory=list)


def read_journal(files: Iterable[Path]) -> Journal:
    """All that was logged. A last line may be torn by a kill."""
    journal = Journal()
    for path in files:
        warnings: Counter[str] = Counter()
        *lines, _ = path.read_bytes().split(b"\n")
        for line in lines:
            try:
                event = orjson.loads(line)
            except orjson.JSONDecodeError:
                if b"Traceback" in line:
                    journal.bugs.append(
                        f"{path.name}: a traceback that is no log event: {line.decode(errors='replace')}"
                    )
                continue
            _note(journal, path, event, warnings)
        journal.storms += [f"{path.name}: {name} {n} times" for name, n in warnings.items() if n > STORM]
    return journal


def _note(journal: Journal, path: Path, event: dict[str, str], warnings: Counter[str]) -> None:
    name, level = event.get("event", ""), event.get("level")
    if name == "group.move":
        journal.moves[_kind_of_move(event)] += 1
    if name in (DELIVERED, "table.committed"):
        journal.deliveries[event["sink"]] += 1
    if name == "sink.failed":
        journal.sink_errors[event["sink"]] += 1
    if level == "debug":
        return
    journal.events[name] += 1
    if level == "warning" and name != "partition.attempt_failed":  # the handler is made to fail
        warnings[name] += 1
    if name == "partition.failed":
        journal.failures[event["error"].partition(":")[0]] += int(event.get("times", 1))
    if "exception" in event:
        journal.bugs.append(f"{path.name}: {name}: {event.get('error', '')}\n{event['exception']}")


def _kind_of_move(move: dict[str, str]) -> str:
    reason = move["reason"]
    for words, kind in (
        ("not renewed", "takeovers"),
        ("not handed it over", "forced handoffs"),
        ("handed it over", "handoffs"),
        ("started anew", "taken from an earlier life"),
        ("left", "taken from who left"),
        ("no owner", "first given"),
    ):
        if words in reason:
            return kind
    return "planned"
