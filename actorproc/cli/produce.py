"""`actorproc produce`: appends the lines of a file or of stdin to a log, with a progress bar."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from actorproc.cli.common import load_settings, run_async
from actorproc.clock import SYSTEM
from actorproc.errors import UsageError
from actorproc.producer import Producer
from actorproc.producing import LineReader, OnBadLine, Produced, produce_lines


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

    async def work() -> tuple[Produced, float]:
        with _lines(file) as (lines, size), _progress(size) as progress:
            began = SYSTEM.monotonic()
            async with Producer(log, partitions=partitions, settings=settings) as producer:
                produced = await produce_lines(
                    producer, lines, key=key, rate=rate, on_bad_line=on_bad_line, progress=progress
                )
            return produced, SYSTEM.monotonic() - began

    try:
        produced, seconds = run_async(work)
    except UsageError as error:
        raise UsageError(f"{file}: {error}" if str(error).startswith("line ") else str(error)) from None
    print(_summary(produced, seconds, log, key))  # noqa: T201


@contextmanager
def _lines(file: str) -> Iterator[tuple[LineReader, int | None]]:
    """The opened file, and its size in bytes if that is known."""
    if file == "-":
        yield cast(LineReader, sys.stdin.buffer), None
        return
    path = Path(file)
    try:
        opened = path.open("rb")
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from None
    with opened:
        yield opened, path.stat().st_size if path.is_file() else None


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
            progress.update(task, completed=sent.bytes + sent.records, events=f"{sent.records:,} events{rate}")

        yield show


def _summary(produced: Produced, seconds: float, log: str, key: str | None) -> str:
    rate = produced.records / seconds if seconds else 0
    lines = [f"{produced.records:,} events appended to {log} in {seconds:.1f} s, {rate:,.0f} per second"]
    counts = sorted(produced.partitions.items(), key=lambda item: int(item[0]))
    lines.append("by partition: " + (", ".join(f"{name}: {count:,}" for name, count in counts) or "none"))
    if produced.unkeyed:
        lines.append(f"{produced.unkeyed:,} without a key, as their {key!r} is null")
    if produced.skipped:
        lines.append(f"{produced.skipped:,} bad lines skipped")
    return "\n".join(lines)
