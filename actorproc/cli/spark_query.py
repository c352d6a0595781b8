"""What `actorproc spark` does: checks what it was asked, makes the session, runs the query and tells how it gets on."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import structlog

from actorproc.admin.reader_positions import position_of
from actorproc.admin.retained import RetainedOutput
from actorproc.admin.spark_checkpoint import has_begun, reads_through_data_source
from actorproc.cli.common import opened_processor, pairs, run_async
from actorproc.cli.loading import load_function
from actorproc.cli.spark_show import Figures, Show, say_started, summary
from actorproc.cli.streams import conclude
from actorproc.cli.workers import end_soon, stop_with_parent
from actorproc.config.settings import Settings
from actorproc.config.units import duration
from actorproc.errors import ActorprocError, HandlerDefinitionError, SettingsError, UsageError
from actorproc.retention.readers import Reader, read_registry, register, remove
from actorproc.runtime.backoff import Backoff
from actorproc.runtime.clock import SYSTEM
from actorproc.runtime.java import check_java
from actorproc.runtime.logger import get_logger
from actorproc.runtime.signals import Signals
from actorproc.spark.errors import needs_active_session
from actorproc.spark.hadoop import check_apart, full_url, spark_url
from actorproc.spark.job import Job
from actorproc.spark.options import checked_names, explicit_settings_as_options, settings_as_options
from actorproc.spark.output import Output, check_column_names
from actorproc.spark.progress import Lag, Progress, read_lag
from actorproc.spark.query import Query, Sink
from actorproc.spark.query_runner import QueryRunner, RetryLimits
from actorproc.spark.session import TO_THE_END, RemoteSession, Session, check_remote, default_master, session_options
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores import open_store

log = get_logger(__name__)

_ELSEWHERE = (
    "none of its sources is this output, whatever the function was given: its lag is not known, and its reader holds every trim until it "
    "is removed (actorproc readers remove)"
)

_LEAVING = 20.0
"""Seconds on top of `stop_within` that an orphan has to leave: more than stopping the query and closing the session take."""

_MODES = ("append", "update", "complete")
_OURS = "actorproc"  # the format whose sink is our own: it opens the log as we do, with our settings
_IN_FOLDERS = ("parquet", "orc", "json", "csv", "text", "avro", "delta", _OURS)
_UNNAMED = re.compile(r"^the checkpoint (?=belongs|holds)")
_COORDINATES = re.compile(r"[^\s:]+:[^\s:]+:[^\s:]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkArguments:
    """The command line; `trigger` and `stop_within` as they were typed."""

    function: str
    name: str
    container: str
    checkpoint: str
    to: str
    path: str | None
    mode: str | None
    options: Mapping[str, str]
    trigger: str
    max_rows: int | None
    max_files: int | None
    columns: Sequence[str] | None
    native: bool
    master: str | None
    remote: str | None
    packages: Sequence[str]
    conf: Mapping[str, str]
    max_failures: int
    stop_within: str
    wait: str

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> SparkArguments:
        """Of the parameters of `actorproc spark`.

        Raises:
            UsageError: an --option or --conf is no pair.
        """
        options = pairs("--option", given["option"])
        path = given["path"] or options.pop("path", None)
        made = {"path", "options", "columns", "packages", "conf"}
        return cls(
            **{field.name: given[field.name] for field in fields(cls) if field.name not in made},
            path=path,
            options=options,
            columns=[name.strip() for name in given["columns"].split(",")] if given["columns"] else None,
            packages=given["package"] or [],
            conf=pairs("--conf", given["conf"]),
        )


def run(ask: SparkArguments, config: Path | None, given: Sequence[str] | None) -> None:
    """Run the query until it ends, is stopped, or fails for good.

    Raises:
        UsageError: something is wrong with what was asked, or missing on this machine.
        QueryFailed, SourceError: see `QueryRunner.run`.
    """
    structlog.contextvars.bind_contextvars(processor=ask.name)
    function, trigger, stop_within, wait = prepare(ask, "actorproc spark")
    stop_with_parent(stop_within + _LEAVING)

    async def work() -> None:
        signals = Signals(SYSTEM, end_soon, "spark")
        with signals.handled():
            async with opened_processor(ask.name, ask.container, config, given, wait) as (store, _, settings):
                if ask.columns is not None:
                    columns = checked_names("--columns", ask.columns)
                    check_column_names(ask.name, columns, await Output(ask.name).schema(store))
                urls = _urls(ask, store, settings)
                # A server has settings of its own, and keys: it is told what the command line says, no more.
                typed = set(pairs("--set", given))
                told = Settings.model_construct(typed, **settings.model_dump()) if ask.remote else settings
                sink = _sink(
                    ask,
                    urls.get("path"),
                    explicit_settings_as_options(told) if ask.remote else settings_as_options(settings),
                )
                query = Query(ask.function, function, urls["checkpoint"], trigger, sink) if function else None
                native = [spark_url(store.url, settings)] if ask.native else []
                session = _session(ask, [*urls.values(), *native], settings)
                log.info("spark.starting", on=session.place)
                await SYSTEM.run_in_thread(session.open, abandon=True)
                query = query or Query(ask.function, load_function(ask.function), urls["checkpoint"], trigger, sink)
                session.carry(ask.function.partition(":")[0])
                job = Job(
                    session=session,
                    query=query,
                    container=store.url,
                    name=ask.name,
                    columns=ask.columns,
                    max_rows=ask.max_rows,
                    max_files=ask.max_files,
                    native=ask.native,
                    settings=settings,
                    told=told,
                )
                backoff = Backoff(settings.restart_backoff, settings.restart_backoff_max)
                await _keep(job, RetryLimits(ask.max_failures, stop_within, backoff), store, signals, ask.trigger)

    run_async(work)


class Prepared(NamedTuple):
    """What a command line asks for, as far as that can be told before the store and Spark are there."""

    function: Callable[..., Any] | None
    """None: only where Spark is can it be imported."""
    trigger: dict[str, Any]
    stop_within: float
    wait: float


def prepare(ask: SparkArguments, who: str) -> Prepared:
    """Check what was asked, and what this machine has; `who` needs it.

    Raises:
        UsageError: something is wrong with what was asked, or missing on this machine.
    """
    _check(ask)
    trigger = _trigger(ask.trigger)
    stop_within, wait = duration("--stop-within", ask.stop_within), duration("--wait", ask.wait)
    function = None
    if not ask.remote:
        function = _load_early(ask.function)
        check_java(who)
    return Prepared(function, trigger, stop_within, wait)


def _check(ask: SparkArguments) -> None:
    """What Spark would say in a page of Java, after the seconds that it takes to start."""
    if ask.remote and (ask.master or ask.packages):
        raise UsageError(
            "--remote (or SPARK_REMOTE) names a server that is there: --master and --package do not go with it"
        )
    if ask.remote:
        check_remote(ask.remote)
    for package in ",".join(ask.packages).split(",") if ask.packages else ():
        if not _COORDINATES.fullmatch(package):
            raise UsageError(
                f"--package {package!r}: write GROUP:NAME:VERSION, such as io.delta:delta-spark_4.2_2.13:4.4.0"
            )
    if ask.to.lower() in _IN_FOLDERS and ask.path is None and "path" not in ask.options:
        what = "the log's" if ask.to.lower() == _OURS else "where its files go"
        raise UsageError(f"--to {ask.to} needs --path URL: {what}")
    if ask.mode is not None and ask.mode.lower() not in _MODES:
        raise UsageError(f"--mode {ask.mode!r}: {', '.join(_MODES)}")
    if ask.to.lower() == _OURS and ask.mode not in (None, "append"):
        raise UsageError(f"--mode {ask.mode!r} with --to {_OURS}: a log can only be appended to; leave --mode out")


def _load_early(spec: str) -> Callable[..., Any] | None:
    """The function, before the seconds that Spark takes to start; None if its module needs Spark to be imported."""
    try:
        return load_function(spec)
    except HandlerDefinitionError as error:
        if needs_active_session(error.__cause__):  # as the decorator @udf("int") does
            return None
        raise


def _sink(ask: SparkArguments, path: str | None, riding: Mapping[str, str]) -> Sink:
    return Sink(ask.to, path, ask.mode, {**(riding if ask.to.lower() == _OURS else {}), **ask.options})


async def _keep(job: Job, limits: RetryLimits, store: Store, signals: Signals, trigger: str) -> None:
    """Run it, and show how it gets on."""
    began, figures, output = SYSTEM.monotonic(), Figures(), Output(job.name)
    what, reads = job.query.spec, output.at(store.url)
    added, said = await _register(job, store), False

    def start(again: bool) -> Any:
        nonlocal said
        query, writes = job.start(again)
        if not said:  # what it writes to is not known before
            said = True
            facts = {
                "query": what,
                "spark": f"{job.session.open().version} on {job.session.place}",
                "page": job.session.page() or "on the server",
                "reads": reads,
                "writes": writes,
                "checkpoint": job.query.checkpoint,
                "trigger": trigger,
            }
            say_started(facts, job.session.told())
        return query

    def note(progress: Progress) -> None:
        if progress.ran and progress.next is None and not job.native and not figures.batches:
            log.warning("spark.reads_something_else", query=what, reads=reads, why=_ELSEWHERE)
        figures.note(progress)

    running = QueryRunner(start, what=what, reads=reads, limits=limits, told=note, clock=SYSTEM)

    async def lag() -> Lag | None:
        if figures.latest is None or figures.latest.next is None:
            return None
        try:
            return await read_lag(output, store, figures.latest)
        except ActorprocError as error:
            log.debug("spark.lag_unknown", error=str(error))
            return None

    async def stop() -> None:
        await signals.wait()
        running.stop()

    show = Show(what, figures, lag)
    signals.started()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop)
            tasks.start_soon(show.run)
            try:
                await running.run()
            except UsageError as error:
                # What is said of a checkpoint in a process of Spark's, which is not told which it is.
                raise type(error)(_UNNAMED.sub(f"the checkpoint {job.query.checkpoint} ", str(error))) from error
            tasks.cancel_scope.cancel()
    except* ActorprocError as failed:
        if added is not None and not figures.batches:
            await _unregister(job, store, added, refused=failed.subgroup(UsageError) is not None)
        raise
    finally:
        if figures.latest is not None:
            conclude(summary(what, figures, running.restarts, SYSTEM.monotonic() - began))
        with anyio.CancelScope(shield=True):
            await SYSTEM.run_in_thread(job.session.close)


async def _register(job: Job, store: Store) -> Reader | None:
    """From now on nothing is trimmed that the query has not read; where its checkpoint can be asked how far it is.

    Returns:
        The reader, if it was not registered before: what then does not begin must not hold back a trim for ever.

    Raises:
        UsageError: the checkpoint is another query's; or it was not registered before, and what it reads next was trimmed.
    """
    try:
        spec = job.query.spec
        reader = Reader.spark(_reader_name(spec), job.query.checkpoint, spec)
    except UsageError as unreadable:  # a place that Hadoop knows, and we do not
        log.warning("spark.not_registered", why=str(unreadable))
        return None
    if job.native:
        if await _ask_checkpoint(job, reader, reads_through_data_source):
            raise UsageError(
                f"the checkpoint {job.query.checkpoint} belongs to a query that reads through the data source, and --native reads "
                "with Spark's own file stream: leave --native out, or give it a new checkpoint"
            )
        log.warning("spark.not_registered", why="how far Spark's own file stream is cannot be told: trim with care")
        return None
    key = ProcessorLayout(job.name).readers
    before = (await read_registry(store, key)).readers
    known = any(other.is_same(reader) for other in before.values())
    at = None if known else await _position(job, store, reader)
    after = (await register(store, key, reader, at, rename=True)).readers
    return next((after[name] for name in after if name not in before and after[name].is_same(reader)), None)


def _reader_name(spec: str) -> str:
    """Such as `app.delays`; of letters that a name may have."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", spec.replace(":", ".")).lstrip("._-")[-100:].lstrip("._-") or "query"


async def _unregister(job: Job, store: Store, reader: Reader, *, refused: bool) -> None:
    """Forget the reader again, if the query is wrong use, or has planned no micro-batch that will run again."""
    if not refused and await _ask_checkpoint(job, reader, has_begun) is not False:
        return
    try:
        await remove(store, ProcessorLayout(job.name).readers, reader.name)
    except ActorprocError as error:  # why it failed is the news; and perhaps the store is
        log.debug("spark.reader_stays", reader=reader.name, error=str(error))


async def _ask_checkpoint(job: Job, reader: Reader, ask: Callable[[Store], Awaitable[bool]]) -> bool | None:
    """What its checkpoint says; None: it does not."""
    try:
        async with open_store(reader.url, job.settings) as checkpoint:
            return await ask(checkpoint)
    except ActorprocError as error:
        log.debug("spark.checkpoint_unknown", error=str(error))
        return None


async def _position(job: Job, store: Store, reader: Reader) -> Mapping[str, int] | None:
    kept = RetainedOutput(store, ProcessorLayout(job.name))
    try:
        return await position_of(kept, reader, (), job.settings)
    except ActorprocError as error:  # a checkpoint of something else, or broken: the query itself will say so
        log.debug("spark.position_unknown", error=str(error))
        return None


def _session(ask: SparkArguments, urls: Sequence[str], settings: Settings) -> Session:
    if ask.remote:
        return RemoteSession(ask.remote, {"spark.sql.session.timeZone": "UTC", **TO_THE_END, **ask.conf})
    master, app = ask.master or default_master(), f"actorproc spark {ask.function}"
    options = session_options(master, app=app, packages=ask.packages, conf=ask.conf, urls=urls, settings=settings)
    return Session(options["spark.master"], options)


def _trigger(text: str) -> dict[str, Any]:
    """Keywords of `DataStreamWriter.trigger`."""
    if text == "available-now":
        return {"availableNow": True}
    try:
        return {"processingTime": f"{round(duration('--trigger', text) * 1000)} milliseconds"}
    except SettingsError as error:
        raise SettingsError(f"{error}; or available-now") from None


def _urls(ask: SparkArguments, store: Store, settings: Settings) -> dict[str, str]:
    """`checkpoint`, and `path` if there is one, as those spell them who write there; both beside what the processor keeps."""
    urls = {}
    for what, url in (("checkpoint", ask.checkpoint), ("path", ask.path)):
        if url is not None:
            check_apart(f"--{what}", url, store.url, ask.name, settings)
            ours = what == "path" and ask.to.lower() == _OURS
            urls[what] = (full_url if ours else spark_url)(url, settings)
            if not ask.remote:
                _check_writable(f"--{what}", urls[what])
    return urls


def _check_writable(what: str, url: str) -> None:
    """Spark would try a folder that it may not write in again and again."""
    if not url.startswith("file://"):
        return
    path = Path(url.removeprefix("file://"))
    there = next(folder for folder in (path, *path.parents) if os.path.exists(folder))  # noqa: PTH110  # it raises where a folder may not be searched
    if there.is_dir() and not os.access(there, os.W_OK | os.X_OK):
        raise UsageError(f"{what} {str(path)!r}: user {os.geteuid()} must be able to write in {there}")
