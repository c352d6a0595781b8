"""`actorproc serve`: loads a handler and runs it as one host, or as several processes."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from actorproc.cli.common import counted, pairs, run_async
from actorproc.cli.loading import load_handler, load_source
from actorproc.cli.workers import Workers, command_line, end_soon, stop_with_parent
from actorproc.clock import SYSTEM
from actorproc.errors import UsageError
from actorproc.processor import Processor, default_host
from actorproc.sources.output import SCHEME
from actorproc.stores import open_store
from actorproc.supervisor import SupervisorStatistics

_LEAVING = 15.0
"""Seconds on top of `max_handoff_time` that an orphaned worker has to leave."""


def run(
    handler: str,
    source: str,
    container: str,
    name: str | None,
    host: str | None,
    workers: int | None,
    start: str,
    until_end: bool,
    options: Sequence[str],
    config: Path | None,
    settings: Sequence[str],
    root: Sequence[str],
) -> None:
    """Serve until stopped. `root`: options that stand before the command, for workers."""
    host = host or default_host()
    keywords: dict[str, Any] = dict(pairs("--set", settings))
    delegate, stream = load_handler(handler), load_source(source)
    processor = Processor(
        delegate,
        source=stream,
        container=container,
        name=name,
        host=host,
        start=start,
        options=pairs("--option", options),
        config=config,
        **keywords,
    )
    store = open_store(container, processor.settings)
    is_log = isinstance(stream, str) and not stream.startswith(SCHEME)
    if is_log and open_store(str(stream), processor.settings).url == store.url:
        raise UsageError(
            f"--source and --container are the same place, {store.url}: the container must be another one than the log"
        )
    if workers is not None:
        again = [*root, "serve", handler, "--source", source, "--container", container, "--start", start]
        again += ["--name", processor.name]
        again += ["--until-end"] if until_end else []
        again += [part for option in options for part in ("--option", option)]
        again += ["--config", str(config)] if config else []
        again += [part for setting in settings for part in ("--set", setting)]
        hosts = [f"{host}-{index}" for index in range(workers)]
        code = run_async(Workers(command_line(again), hosts, until_end=until_end).run)
        raise typer.Exit(code)
    stop_with_parent(processor.settings.max_handoff_time + _LEAVING)
    look = ["--name", processor.name, "--container", container, *(["--config", str(config)] if config else [])]
    look += [part for setting in settings if _is_shown(setting) for part in ("--set", setting)]

    async def work() -> None:
        began = SYSTEM.monotonic()
        try:
            await processor.run(until_end=until_end, signals=True, aborting=end_soon)
        finally:
            if (did := processor.statistics().supervisor) is not None:
                typer.echo(_summary(did, processor, SYSTEM.monotonic() - began, look))

    run_async(work)


def _summary(did: SupervisorStatistics, processor: Processor, seconds: float, look: Sequence[str]) -> str:
    lines = [
        f"{processor.name} on {processor.host}: {counted(did.done.records, 'record')} handled, {counted(did.done.rows, 'row')} and "
        f"{counted(did.done.dead_letters, 'dead letter')} committed, in {seconds:.1f} s"
    ]
    if did.done.dead_letters:
        lines.append(f"see why: actorproc dead-letters list {shlex.join(look)}")
    return "\n".join(lines)


def _is_shown(setting: str) -> bool:
    """What another command needs to find the store, but for secrets."""
    return setting.startswith("s3_") and "_key" not in setting.partition("=")[0]
