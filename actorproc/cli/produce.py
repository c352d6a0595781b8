"""`actorproc produce`: appends the lines of a file or of stdin to a log, with a progress bar."""

from __future__ import annotations

import os
import select
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from actorproc.cli.common import counted, load_settings, run_async, shown_settings
from actorproc.cli.streams import conclude
from actorproc.clock import SYSTEM
from actorproc.errors import ActorprocError, UsageError
from actorproc.log.producer import Producer
from actorproc.log.producing import BadLine, LineReader, OnBadLine, Produced, first_checked, produce_lines
from actorproc.signals import SAME_STOP
from actorproc.tasks import first_cause


def run(
    file: str,
    log: str,
    partitions: int | None,
    key: str | None,
    rate: float | None,
    on_bad_line: OnBadLine,
    config: Path | None,
    given: Sequence[str] | None,
) -> None:
    """Append the lines."""
    settings = load_settings(config, given)

    async def work() -> None:
        with _lines(file) as (lines, size), _progress(size) as progress:
            checked: LineReader = lines
            if key is not None and partitions is not None and on_bad_line == "fail" and file != "-":
                # The number of partitions is for good: a log is not made for a key that is misspelt. (A stream may be silent for
                # long, and whoever reads the log wants to begin.)
                async with _until_signal() as scope:
                    checked = await first_checked(lines, key)
                if scope.cancelled_caught:
                    _interrupted(0, file, log)
                    return
            began = SYSTEM.monotonic()
            async with (
                Producer(log, partitions=partitions, partitioner="round-robin", settings=settings) as producer,
                _until_signal() as scope,
            ):
                produced = await produce_lines(
                    producer, checked, key=key, rate=rate, on_bad_line=on_bad_line, progress=progress
                )
            seconds = SYSTEM.monotonic() - began
        if not scope.cancelled_caught:
            conclude(_summary(produced, seconds, log, key))
            return
        _interrupted(producer.statistics().records, file, log)

    try:
        run_async(work)
    except* UsageError as errors:
        error = first_cause(errors)
        if not isinstance(error, BadLine):
            raise error from None
        given_too = {"--key": key, "--rate": rate, "--config": config}
        more = [part for name, value in given_too.items() if value is not None for part in (name, str(value))]
        raise _explained(error, file, log, [*more, *shown_settings(given or [])]) from None


def _interrupted(sent: int, file: str, log: str) -> None:
    """Say what is in the log. Raises ActorprocError where the rest of a file is missing."""
    known = f"interrupted: {counted(sent, 'event')} {'is' if sent == 1 else 'are'} in {log}"
    if file != "-":
        raise ActorprocError(f"{known}, and the rest of {file} is not")
    conclude(known)


def _explained(bad: BadLine, file: str, log: str, more: Sequence[str]) -> UsageError:
    """What is in the log, and how to go on, so that no line is appended twice. `more`: options given."""
    if bad.records == 0 and bad.is_json:
        return UsageError(
            f"{file}: line {bad.number}: {bad.why}.\nNothing was appended. Give the --key that the lines have, or none; or mend the "
            "line, or give --on-bad-line skip"
        )
    if bad.records == 0:
        return UsageError(
            f"{file}: line {bad.number}: {bad.why}.\nNothing was appended. If no line is JSON, leave out --key: they are appended as "
            "they are (in Python, `Producer` takes any key). Else mend the line, or give --on-bad-line skip"
        )
    there = f"{counted(bad.records, 'record')} before it {'is' if bad.records == 1 else 'are'} in the log"
    if file == "-":
        way = "--on-bad-line skip passes over such lines"
    else:
        again = shlex.join(["actorproc", "produce", "--log", log, *more, "-"])
        way = f"Mend the line, or give --on-bad-line skip, and go on from it: tail -n +{bad.number} {shlex.quote(file)} | {again}"
    return UsageError(f"{file}: line {bad.number}: {bad.why}.\n{there}, and nothing after it. {way}")


@asynccontextmanager
async def _until_signal() -> AsyncIterator[anyio.CancelScope]:
    """A signal cancels what is done inside."""
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_cancel_on_signal, scope)
            yield scope
            tasks.cancel_scope.cancel()


async def _cancel_on_signal(scope: anyio.CancelScope) -> None:
    """What was taken in is still appended then; a second signal ends the process."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            scope.cancel()
            with anyio.CancelScope(shield=True):
                await SYSTEM.sleep(SAME_STOP)
            return


class _Input:
    """A file or pipe to read from, in a thread that can be woken: one that waits for input would keep the process alive."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._woken, self._wake = os.pipe()  # left to the end of the process: the thread may be about to look at it

    def read1(self, size: int, /) -> bytes:
        ready, _, _ = select.select([self._descriptor, self._woken], [], [])
        return b"" if self._woken in ready else os.read(self._descriptor, size)

    def wake(self) -> None:
        """Nobody waits for what is read from now on."""
        os.write(self._wake, b"!")


@contextmanager
def _lines(file: str) -> Iterator[tuple[_Input, int | None]]:
    """The opened file, and its size in bytes if that is known."""
    path = Path(file)
    if file == "-" and sys.stdin is None:  # as the process was started
        raise UsageError("cannot read -: stdin is closed")
    try:
        opened = sys.stdin.buffer if file == "-" else path.open("rb")
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from None
    with opened:
        lines = _Input(opened.fileno())
        try:
            yield lines, path.stat().st_size if file != "-" and path.is_file() else None
        finally:
            lines.wake()


@contextmanager
def _progress(size: int | None) -> Iterator[Callable[[Produced], None]]:
    """A bar on stderr, if that is a terminal: bytes of those known, events per second."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    columns = [BarColumn(), DownloadColumn(), TextColumn("{task.fields[events]}"), TimeElapsedColumn()]
    with Progress(*columns, *([TimeRemainingColumn()] if size else []), console=console, transient=True) as progress:
        task = progress.add_task("", total=size, events="")

        def show(sent: Produced) -> None:
            seconds = progress.tasks[0].elapsed or 0
            rate = f", {sent.records / seconds:,.0f}/s" if seconds else ""
            # Line breaks were read too, and are not counted as sent.
            progress.update(task, completed=sent.bytes + sent.records, events=counted(sent.records, "event") + rate)

        yield show


def _summary(produced: Produced, seconds: float, log: str, key: str | None) -> str:
    rate = produced.records / seconds if seconds else 0
    lines = [f"{counted(produced.records, 'event')} appended to {log} in {seconds:.1f} s, {rate:,.0f} per second"]
    counts = sorted(produced.partitions.items(), key=lambda item: int(item[0]))
    lines.append("by partition: " + (", ".join(f"{name}: {count:,}" for name, count in counts) or "none"))
    if produced.unkeyed:
        lines.append(f"{produced.unkeyed:,} without a key: {key!r} is null")
    if produced.skipped:
        lines.append(f"{counted(produced.skipped, 'bad line')} skipped")
    return "\n".join(lines)
