"""`actorproc produce`: appends the records of a file or of stdin to a log, with a progress bar."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import anyio
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from actorproc.cli.common import load_settings, run_async
from actorproc.cli.streams import conclude, warn
from actorproc.cli.terminal import SafeConsole, counted
from actorproc.cli.workers import end_soon
from actorproc.errors import ActorprocError, UsageError
from actorproc.produce.input_formats import BadLine, CsvRows, InputFormat, JsonLines, TextLines
from actorproc.produce.input_producer import Delivered, InputProducer, OnBadLine, Produced
from actorproc.produce.producer import Producer
from actorproc.runtime.clock import SYSTEM
from actorproc.runtime.signals import SAME_SIGNAL_TIME
from actorproc.runtime.tasks import first_cause

FormatName = Literal["json", "text", "csv"]

_FORMATS: dict[FormatName, type[InputFormat]] = {"json": JsonLines, "text": TextLines, "csv": CsvRows}


def _chosen(file: str, name: FormatName | None, *fields: str | None) -> type[InputFormat]:
    """The format of a file. `name`: as given by --format; `fields`: of the key and of the time."""
    with_fields = any(field is not None for field in fields)
    if name is None:
        name = "csv" if file.lower().endswith(".csv") else "json" if with_fields else "text"
    elif name == "text" and with_fields:
        raise UsageError("--key and --timestamp name a field of JSON or CSV, and text has none: give another --format")
    return _FORMATS[name]


def run(
    file: str,
    log: str,
    partitions: int | None,
    format_name: FormatName | None,
    key: str | None,
    time: str | None,
    from_line: int,
    rate: float | None,
    on_bad_line: OnBadLine,
    config: Path | None,
    given: Sequence[str] | None,
) -> None:
    """Append the records."""
    settings = load_settings(config, given)
    opened = _chosen(file, format_name, key, time)
    input_producer = InputProducer(rate=rate, from_line=from_line, on_bad_line=on_bad_line)

    async def work() -> str | None:
        reading, everything = anyio.CancelScope(), anyio.CancelScope()
        with _lines(file) as (lines, size), _progress(size) as progress:
            began = SYSTEM.monotonic()
            with everything:
                async with (
                    Producer(log, partitions=partitions, partitioner="round-robin", settings=settings) as producer,
                    anyio.create_task_group() as tasks,
                ):
                    tasks.start_soon(_cancel_on_signals, reading, everything)
                    try:
                        with reading:
                            await input_producer.run(opened(lines, key, time), producer, progress)
                    except ActorprocError:
                        with suppress(ActorprocError):  # it has the same cause
                            await producer.flush()  # here, where signals are handled
                        raise
                    await producer.flush()
                    tasks.cancel_scope.cancel()
            seconds = SYSTEM.monotonic() - began
        if reading.cancelled_caught or everything.cancelled_caught:
            return None
        return _summary(input_producer.produced, seconds, log)

    try:
        try:
            summary = run_async(work)
        finally:
            _show_bad_lines(file, input_producer)
    except (ActorprocError, ExceptionGroup) as errors:
        error = first_cause(errors)
        if not isinstance(error, ActorprocError):
            raise
        raise _explained(error, input_producer.delivered(), file, log) from None
    if summary is None:
        delivered = input_producer.delivered()
        summary = f"interrupted: {_in_the_log(delivered, file, log)}"
        if file != "-" or not delivered.certain:  # a stream has no end
            raise ActorprocError(f"{summary}. To append the rest, {_going_on(delivered)}")
    conclude(summary)


def _show_bad_lines(file: str, done: InputProducer) -> None:
    """Print the first bad lines that were kept or skipped to stderr."""
    for line in done.bad_lines:
        warn(f"{file}: line {line.number:,}: {line.why}")
    if more := done.produced.kept + done.produced.skipped - len(done.bad_lines):
        warn(f"... and {more:,} more bad lines")


def _explained(error: ActorprocError, done: Delivered, file: str, log: str) -> ActorprocError:
    """The error, with the lines that are in the log and how to go on."""
    why, advice = str(error), "Fix the cause"
    if isinstance(error, BadLine):
        why = f"{file}: line {error.number}: {error.why}"
        advice = "Fix the line, or give --on-bad-line keep (the line is appended without a key) or skip"
    kind = UsageError if isinstance(error, UsageError) else ActorprocError
    if done.records or not done.certain:
        return kind(f"{why}.\n{_in_the_log(done, file, log)}. {advice}, and {_going_on(done)}")
    if isinstance(error, BadLine):
        return kind(f"{why}.\nNothing was appended. {advice}")
    return error if isinstance(error, UsageError) else kind(f"{why}.\nNothing was appended")


def _in_the_log(done: Delivered, file: str, log: str) -> str:
    """Which lines are in the log. Those of stdin are counted from where this command began to read."""
    source = "what this command read from stdin" if file == "-" else file
    events = f"{counted(done.records, 'event')} {'is' if done.records == 1 else 'are'} in {log}"
    if not done.certain:
        return f"{events}. The first line of {source} that may be missing is {done.next_line:,}"
    return (
        f"{events}: all of {source} up to line {done.next_line - 1:,}, and nothing after it" if done.records else events
    )


def _going_on(done: Delivered) -> str:
    """How to append the rest."""
    if done.certain and not done.records:
        return "run the command again"
    twice = "" if done.certain else ". Later lines that are in the log are appended a second time"
    return f"run the command again with --from-line {done.next_line}{twice}"


async def _cancel_on_signals(reading: anyio.CancelScope, everything: anyio.CancelScope) -> None:
    """The first signal cancels `reading`; records that were read are appended. A second one cancels `everything`."""
    first: float | None = None
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            if first is None:
                first = SYSTEM.monotonic()
                reading.cancel()
            elif SYSTEM.monotonic() - first >= SAME_SIGNAL_TIME:
                end_soon()  # the disk may hang
                everything.cancel()


class _Input:
    """A file or pipe that is read in a thread. `wake` ends a read, or the thread would keep the process alive."""

    def __init__(self, name: str, descriptor: int) -> None:
        self._name = name
        self._descriptor = descriptor
        self._woken, self._wake = os.pipe()  # never closed: the thread may still use it

    def read1(self, size: int, /) -> bytes:
        ready, _, _ = select.select([self._descriptor, self._woken], [], [])
        try:
            return b"" if self._woken in ready else os.read(self._descriptor, size)
        except OSError as error:
            raise ActorprocError(f"cannot read {self._name}: {error.strerror}") from None

    def wake(self) -> None:
        """End the read that is under way."""
        os.write(self._wake, b"!")


@contextmanager
def _lines(file: str) -> Iterator[tuple[_Input, int | None]]:
    """The opened file, and its size in bytes if it is known."""
    path = Path(file)
    if file == "-" and sys.stdin is None:  # it was closed when the process started
        raise UsageError("cannot read -: stdin is closed")
    try:
        opened = sys.stdin.buffer if file == "-" else path.open("rb")
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from None
    with opened:
        lines = _Input(file, opened.fileno())
        try:
            yield lines, path.stat().st_size if file != "-" and path.is_file() else None
        finally:
            lines.wake()


@contextmanager
def _progress(size: int | None) -> Iterator[Callable[[Produced], None]]:
    """A progress bar on stderr, if that is a terminal: bytes, events and events per second."""
    console = SafeConsole(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    columns = [BarColumn(), DownloadColumn(), TextColumn("{task.fields[events]}"), TimeElapsedColumn()]
    with Progress(*columns, *([TimeRemainingColumn()] if size else []), console=console, transient=True) as progress:
        task = progress.add_task("", total=size, events="")

        def show(sent: Produced) -> None:
            seconds = progress.tasks[0].elapsed or 0
            rate = f", {sent.records / seconds:,.0f}/s" if seconds else ""
            progress.update(task, completed=sent.bytes, events=counted(sent.records, "event") + rate)

        yield show


def _summary(produced: Produced, seconds: float, log: str) -> str:
    rate = produced.records / seconds if seconds else 0
    lines = [f"{counted(produced.records, 'event')} appended to {log} in {seconds:.1f} s, {rate:,.0f} per second"]
    counts = sorted(produced.partitions.items(), key=lambda item: int(item[0]))
    lines.append("by partition: " + (", ".join(f"{name}: {count:,}" for name, count in counts) or "none"))
    if (null := produced.unkeyed - produced.kept) > 0:
        lines.append(f"{null:,} without a key: it is null or empty")
    if produced.kept:
        lines.append(f"{counted(produced.kept, 'bad line')} appended without a key")
    if produced.skipped:
        lines.append(f"{counted(produced.skipped, 'bad line')} skipped")
    return "\n".join(lines)
