"""Sums the numbers of the worker processes of one `serve`: each reports its own through a pipe when it ends."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection
from contextlib import suppress

import msgspec

from actorproc.counts import Counts

REPORT_PIPE = "ACTORPROC_REPORT_PIPE"
"""Environment variable: number of the descriptor into which a worker writes its report."""

_AT_ONCE = 2**16  # bytes, all that a pipe holds


class Report(msgspec.Struct):
    """The counts of one host; see `Statistics`."""

    host: str = ""
    counts: Counts = Counts()


def described(counts: Counts) -> str:
    """The counts in words."""
    from actorproc.cli.terminal import counted  # which imports Rich: no host waits for it when it starts

    skipped = f", {counts.skipped:,} skipped" if counts.skipped else ""
    return (
        f"{counted(counts.records, 'record')} handled, {counted(counts.rows, 'row')} and "
        f"{counted(counts.dead_letters, 'dead letter')} committed{skipped}"
    )


def report_pipe() -> int | None:
    """In a worker: the descriptor for its report. Its child processes are not told of it."""
    given = os.environ.pop(REPORT_PIPE, None)
    return None if given is None else int(given)


def send(report: Report, pipe: int) -> None:
    """Report to the parent. A parent that is gone, or does not read, costs the report only."""
    with suppress(OSError):
        os.write(pipe, msgspec.json.encode(report) + b"\n")


class Totals:
    """The sum of the reports, and the processes that ended without one. Used as a context, which closes the pipe.

    Args:
        hosts: names of the workers that report.
    """

    def __init__(self, hosts: Collection[str]) -> None:
        self._hosts = hosts
        self.sum = Counts()
        self._reports = 0
        self._reported = Counter[str]()  # reports by hosts whose process is not known to have ended
        self._killed = Counter[str]()  # processes without a report, by host and cause
        self._begun = b""  # of a line
        self._reading, self.pipe = os.pipe()
        for end in (self._reading, self.pipe):  # a worker must not wait for its parent, nor the parent for it
            os.set_blocking(end, False)

    def __enter__(self) -> Totals:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._reading)
        os.close(self.pipe)

    def ended(self, host: str, cause: str | None) -> None:
        """Note that a process of this host has ended.

        Args:
            cause: of its end, such as `SIGKILL`; None: it need not have reported, as it did nothing.
        """
        self._read()
        if self._reported[host]:
            self._reported[host] -= 1
        elif host in self._hosts and cause is not None:
            self._killed[f"{host} ({cause})"] += 1

    def _read(self) -> None:
        with suppress(BlockingIOError):
            while True:
                self._begun += os.read(self._reading, _AT_ONCE)
        *lines, self._begun = self._begun.split(b"\n")
        for line in lines:
            one = msgspec.json.decode(line, type=Report)
            self._reported[one.host] += 1
            self._reports += 1
            self.sum += one.counts

    def text(self, processor: str, seconds: float) -> str | None:
        """A summary; None: no worker has begun, or the only one has said it."""
        if not self._killed and (len(self._hosts) < 2 or not self._reports):
            return None
        from actorproc.cli.terminal import counted

        found = f"{processor} on {counted(len(self._hosts), 'worker')}: {described(self.sum)}, in {seconds:.1f} s"
        if not self._killed:
            return found
        names = [f"{who}{f', {times} times' if times > 1 else ''}" for who, times in sorted(self._killed.items())]
        return f"{found}\nnot counted, as they ended without a report: {'; '.join(names)}. What they committed counts"
