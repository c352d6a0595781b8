"""`actorproc serve`: loads a handler and runs it as one host, or as several processes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import structlog
import typer

from actorproc.cli.common import pairs, run_async
from actorproc.cli.loading import load_handler, load_source
from actorproc.cli.workers import Workers, command_line, stop_with_parent
from actorproc.errors import ActorprocError
from actorproc.processor import Aborted, Processor, default_host

_LEAVING = 15.0
"""Seconds on top of `max_handoff_time` that an orphaned worker has to leave."""

log = structlog.get_logger(__name__)


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
    processor = Processor(
        load_handler(handler),
        source=load_source(source),
        container=container,
        name=name,
        host=host,
        start=start,
        options=pairs("--option", options),
        config=config,
        **keywords,
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
    try:
        run_async(partial(processor.run, until_end=until_end, signals=True))
    except Aborted as aborted:
        raise ActorprocError(str(aborted)) from None
