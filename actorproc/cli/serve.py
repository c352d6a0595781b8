"""`actorproc serve`: loads a handler and runs it as one host, or as several processes, with Spark beside them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import nullcontext

import typer

from actorproc.cli.common import run_async, shown_settings
from actorproc.cli.dashboard import address_of_worker, serving
from actorproc.cli.exit_codes import FAILED, REACHED_END
from actorproc.cli.serve_arguments import ServeArguments
from actorproc.cli.spark import check
from actorproc.cli.streams import conclude
from actorproc.cli.worker_totals import Report, Totals, described, report_pipe, send
from actorproc.cli.workers import Workers, command_line, deadline, end_soon, stop_with_parent
from actorproc.errors import UsageError
from actorproc.host.statistics import Statistics
from actorproc.runtime.clock import SYSTEM
from actorproc.runtime.own_process import set_up_process

_FIRST_RUN = "5m"
"""How long the query waits for its hosts, which start beside it, to begin."""

_LEAVING = 15.0
"""Seconds on top of `max_handoff_time` that a host has to leave, after a signal or when it is orphaned."""


def run(arguments: ServeArguments) -> None:
    """Serve until stopped."""
    processor, until_end, settings = arguments.processor(), arguments.until_end, arguments.settings or []
    place = arguments.place(processor.name)
    query = _query(arguments, [*place, *(part for setting in settings for part in ("--set", setting))])
    if arguments.workers is not None or query is not None:
        host, workers = processor.host, arguments.workers
        hosts = [host] if workers is None else [f"{host}-{index}" for index in range(workers)]
        commands = {
            host: command_line(arguments.worker(host, address_of_worker(arguments.http, index)))
            for index, host in enumerate(hosts)
        }
        raise typer.Exit(_supervise(commands, f"{host}-spark", query, until_end, processor.name))
    longest = processor.settings.max_handoff_time + _LEAVING
    is_worker = stop_with_parent(longest)
    reports = report_pipe() if is_worker else None
    look = [*place, *shown_settings(settings)]

    async def work() -> None:
        began, drained = SYSTEM.monotonic(), deadline(longest, "first")
        try:
            async with serving(processor, arguments.http) if arguments.http is not None else nullcontext():
                await processor.run(until_end=until_end, signals=True, draining=drained.start, aborting=end_soon)
        finally:
            drained.cancel()
            statistics = processor.statistics()
            if statistics.incarnation is not None:
                if reports is not None:
                    send(Report(statistics.host, statistics.counts), reports)
                _conclude(statistics, SYSTEM.monotonic() - began, look, until_end=until_end)

    set_up_process()  # the handler's modules are imported
    run_async(work)
    if is_worker and until_end:
        raise typer.Exit(REACHED_END)


def _query(arguments: ServeArguments, place: Sequence[str]) -> list[str] | None:
    """The arguments of the query's process, if there is one: `spark` is MODULE:FUNCTION and options of that command."""
    spark, checkpoint = arguments.spark, arguments.spark_checkpoint
    if spark is None:
        if checkpoint is not None:
            raise UsageError("--spark-checkpoint goes with --spark MODULE:FUNCTION")
        return None
    try:
        words = shlex.split(spark)
    except ValueError as error:
        raise UsageError(f"--spark {spark!r}: {error}") from None
    if checkpoint is None and not any(word.partition("=")[0] == "--checkpoint" for word in words):
        raise UsageError(f"--spark {spark!r} needs --spark-checkpoint URL: where Spark notes how far the query is")
    words += [*place, *(["--checkpoint", checkpoint] if checkpoint else [])]
    check(spark, words)
    return [*arguments.root(), "spark", "--wait", _FIRST_RUN, *words]


def _supervise(hosts: dict[str, list[str]], name: str, query: list[str] | None, until_end: bool, processor: str) -> int:
    """Run the hosts, and beside them the query; until the end: after them, over all that is there. The exit code."""
    beside = {} if query is None or until_end else {name: command_line(query)}
    with Totals(hosts) as totals:
        workers = Workers(hosts | beside, until_end=until_end, done=REACHED_END, totals=totals)

        async def work() -> int:
            began = SYSTEM.monotonic()
            try:
                return await workers.run()
            finally:
                if (summary := totals.text(processor, SYSTEM.monotonic() - began)) is not None:
                    conclude(summary)

        failed = run_async(work)
    if query is None or beside:
        return failed
    if failed or workers.stopped:
        return failed or FAILED  # the hosts had reached the end, but the query has not begun
    return run_async(Workers({name: command_line([*query, "--trigger", "available-now"])}, until_end=True).run)


def _conclude(statistics: Statistics, seconds: float, look: Sequence[str], *, until_end: bool) -> None:
    """Print a summary of this host's work. `look`: options for a command that shows the dead letters."""
    did, host = statistics.counts, statistics.host
    lines = [f"{statistics.processor} on {host}: {described(did)}, in {seconds:.1f} s"]
    if did.dead_letters:
        lines.append(f"see why: actorproc dead-letters list {shlex.join(look)}")
    conclude("\n".join(lines))
    if until_end and did.dead_letters and not did.rows and did.dead_letters >= did.records:
        typer.secho(
            f"warning: every record that {host} handled became a dead letter, and no row was committed: "
            "does the handler fit the source?",
            err=True, fg=typer.colors.YELLOW,
        )  # fmt: skip
