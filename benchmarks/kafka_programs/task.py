"""What a program is given, and what it reports."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Task:
    """Consume the first `events` of a topic, spread evenly over its partitions, and write the rows into `out`.

    Attributes:
        properties: of librdkafka, beside those that the library sets.
        variant: of the program, where it has several.
    """

    brokers: str
    topic: str
    partitions: int
    events: int
    out: str
    properties: dict[str, Any] = field(default_factory=dict)
    variant: str = ""

    @classmethod
    def given(cls) -> Task:
        """The task of this process, from its argument."""
        return cls(**json.loads(sys.argv[1]))

    @property
    def argument(self) -> str:
        return json.dumps(asdict(self))

    @property
    def folder(self) -> Path:
        folder = Path(self.out)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def new_topic(self) -> str:
        """A topic of this process's own to write to, with as many partitions."""
        from confluent_kafka.admin import AdminClient  # not every library comes with it
        from confluent_kafka.cimpl import NewTopic

        name = f"{self.topic}-{self.folder.name}"
        client = AdminClient({"bootstrap.servers": self.brokers})
        client.create_topics([NewTopic(name, self.partitions, 1)])[name].result(30)
        return name


class Stopwatch:
    """Measures this process from its first event to its last durable row."""

    def __init__(self) -> None:
        self._began: tuple[float, float] | None = None

    def begin(self) -> None:
        """The first event is here. Later calls do nothing."""
        if self._began is None:
            self._began = time.perf_counter(), time.process_time()

    def finish(self) -> None:
        """All rows are durable: report seconds, CPU seconds and the peak of memory in bytes on standard output."""
        assert self._began is not None, "no event has come"
        began, cpu = self._began
        report = {
            "seconds": time.perf_counter() - began,
            "cpu": time.process_time() - cpu,
            "memory": _peak_of_memory(),
        }
        os.write(1, b"\n" + json.dumps(report).encode() + b"\n")


def _peak_of_memory() -> int:
    """Bytes. Of this program only: getrusage counts the process that forked it, too."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024
