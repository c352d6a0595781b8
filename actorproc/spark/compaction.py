"""`compact`: Spark rewrites small committed files into well-sized ones, some at a time, and readers are switched to them.

What a task writes nobody is told of; the driver tells, group by group as they are done, in the order of the commits. So it
may be killed anywhere and run again. Protocol: docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial

import orjson
import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from actorproc.config.settings import Settings
from actorproc.config.units import count_of_bytes, duration
from actorproc.errors import CorruptObject, QueryFailed, SourceError, UsageError
from actorproc.group.locations import missing_processor
from actorproc.output.compaction import CompactionPlan, FileGroup, merge, plan, sweep, switch
from actorproc.output.row_reader import partitions_with_state
from actorproc.output.schema import read_schema
from actorproc.retention.boundary import RETENTION, CompactedRange
from actorproc.rows.schema import output_schema
from actorproc.runtime.tasks import gather
from actorproc.spark.blocking_store import BlockingStore, open_blocking
from actorproc.spark.cores import cores
from actorproc.spark.errors import error_text, java_ended_message, translate_error
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store

TARGET_SIZE = 128 * 2**20
"""Bytes: what Spark reads in one task by default. A task that writes such a file holds it in memory."""

_GROUPS_PER_CORE = 4  # that are done between two looks at the driver: enough to even out, few enough to lose
_NAMED = 10  # files, in the error that ends a compaction


@dataclass(slots=True)
class Compaction:
    """What was to be done, and what came of it. Bytes are of files in the store."""

    plans: Sequence[CompactionPlan] = field(repr=False)
    files_before: int = 0
    """Of what is or was to be rewritten."""
    bytes_before: int = 0
    files_after: int = 0
    bytes_after: int = 0
    rows: int = 0
    swept: int = 0
    """Compacted files, replaced or left by a job that died, that were deleted."""
    given_up: set[str] = field(default_factory=set)
    """Partitions at which somebody else was at work; run it again."""
    failed: list[CorruptObject | SourceError] = field(default_factory=list)
    """What is wrong with files that could not be compacted."""

    @property
    def groups(self) -> list[FileGroup]:
        """Files that become one, each."""
        return [group for found in self.plans for group in found.groups]


def compact(
    spark: SparkSession | Callable[[], SparkSession],
    container: str,
    name: str,
    *,
    target_size: int | str = TARGET_SIZE,
    older_than: float | str = RETENTION,
    keep: float | str = RETENTION,
    dry_run: bool = False,
    settings: Settings | None = None,
    began: Callable[[Compaction], None] = lambda _: None,
    done: Callable[[FileGroup], None] = lambda _: None,
) -> Compaction:
    """Rewrite what processor `name` committed in small files into files of about `target_size` bytes.

    Readers of ours find each row in one place at every moment. The originals stay until `actorproc trim` deletes them.
    Killed, it can be run again; two at once do no harm.

    Args:
        spark: a session; or what makes one, asked only if there is something to do.
        container: its URL.
        target_size: in bytes, or text such as "256MiB".
        older_than: seconds (or text such as "6h") since the youngest commit that is taken.
        keep: seconds for which compacted files that were replaced stay for queries that were planned before; an hour at
            least.
        dry_run: change nothing; tell what would be done.
        settings: how to reach the store; default: environment and `actorproc.toml`.
        began: told what will be done, or with `dry_run` would be. done: told of each group as readers are switched to its file.

    Raises:
        UsageError: there is no such processor; an argument is wrong; the session is of Spark Connect.
        CorruptObject, SourceError: files are not what was written there, or missing; what could be done is done.
        StoreError: the store could not be read or written; what is done is done.
    """
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise UsageError("compact needs a session of its own process, such as local[*], not one of Spark Connect")
    target = count_of_bytes("target_size", target_size)
    age, kept = duration("older_than", older_than), duration("keep", keep)
    if kept < RETENTION:
        raise UsageError(
            f"keep = {kept:g} s: {RETENTION:g} s (1h) at least; queries that were planned before still read"
        )
    settings = settings or Settings.load()
    layout = ProcessorLayout(name)
    with open_blocking(container, settings) as place:
        schema, plans = place.call(_planned, place.store, layout, target, age)
        found = Compaction(plans)
        found.files_before = sum(group.files for group in found.groups)
        found.bytes_before = sum(group.size for group in found.groups)
        found.failed += [planned.lost for planned in plans if planned.lost is not None]
        began(found)
        if not dry_run:
            if found.groups:
                work = _Work(place.store.url, settings, layout, schema)
                _Job(spark if isinstance(spark, SparkSession) else spark(), place, work, found, done).run_all()
            swept = place.call(gather, [p.partition for p in plans], partial(sweep, place.store, layout, keep=kept))
            found.swept = sum(len(gone) for gone in swept.values())
    if found.failed:
        raise _together(found.failed)
    return found


def _together(failed: Sequence[CorruptObject | SourceError]) -> CorruptObject | SourceError:
    """One error for all."""
    if len(failed) == 1:
        return failed[0]
    shown = [str(error) for error in failed[:_NAMED]]
    more = f"; and {len(failed) - _NAMED} more" if len(failed) > _NAMED else ""
    return SourceError(f"{len(failed)} files keep others from being compacted: {'; '.join(shown)}{more}")


@dataclass(frozen=True)
class _Work:
    """What tasks need to know."""

    url: str
    settings: Settings
    layout: ProcessorLayout
    schema: pa.Schema

    def __call__(self, groups: Sequence[FileGroup], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """In a task: do the groups whose indices come. What is wrong with a file is no fault of the task's: it is said."""
        with open_blocking(self.url, self.settings, patient=True) as place:
            for index in (value.as_py() for batch in batches for value in batch.column(0)):
                try:
                    made = place.call(merge, place.store, self.layout, groups[index], self.schema)
                    report = orjson.dumps({"made": made and asdict(made)})
                except CorruptObject as error:
                    report = orjson.dumps({"corrupt": error.args})
                except pa.ArrowException as error:  # likewise
                    first = self.layout.output_file(groups[index].partition, groups[index].first)
                    why = f"cannot be written anew together with those after it: {error}"
                    report = orjson.dumps({"corrupt": (first, why, self.url)})
                yield pa.record_batch([[index], [report]], schema=_REPORT)


_REPORT = pa.schema([("group", pa.int64()), ("report", pa.binary())])


class _Job:
    """The driver's side."""

    def __init__(
        self,
        spark: SparkSession,
        place: BlockingStore,
        work: _Work,
        found: Compaction,
        done: Callable[[FileGroup], None],
    ) -> None:
        self._spark = spark
        self._place = place
        self._work = work
        self._found = found
        self._done = done
        self._stopped: set[str] = set()  # partitions of which no more can be done

    def run_all(self) -> None:
        """Rewrite all groups, some at a time, but for those with files that are not what was written there.

        Raises:
            ActorprocError: a task failed again and again.
        """
        groups = self._found.groups
        try:
            at_once = cores(self._spark) * _GROUPS_PER_CORE
            for start in range(0, len(groups), at_once):
                self._run(groups[start : start + at_once])
        except (Py4JNetworkError, ConnectionError) as error:
            then = "What was rewritten stays so; run it again"
            raise QueryFailed(java_ended_message(error, "rewrites files", then)) from error
        except (Py4JJavaError, PySparkException) as error:
            raise translate_error(error, "rewriting files") from error
        except Py4JError as error:
            raise QueryFailed(f"rewriting files: {error_text(error)}") from error

    def _run(self, groups: Sequence[FileGroup]) -> None:
        """Rewrite some, and switch readers to what came of them."""
        groups = [group for group in groups if group.partition not in self._stopped | self._found.given_up]
        if not groups:
            return
        frame = self._spark.range(0, len(groups), 1, len(groups)).mapInArrow(
            partial(self._work, groups), "group long, report binary"
        )
        reports = {row["group"]: orjson.loads(bytes(row["report"])) for row in frame.collect()}
        for planned in self._found.plans:
            made = []
            for index, group in enumerate(groups):
                if group.partition != planned.partition:
                    continue
                report = reports[index]
                if "corrupt" in report:
                    self._found.failed.append(CorruptObject(*report["corrupt"]))
                    if not group.originals:
                        continue  # readers stay where they are led to, and may be led elsewhere for what follows
                    self._stopped.add(planned.partition)  # originals are taken in order
                    break
                if not report["made"]:
                    self._found.given_up.add(planned.partition)
                    break
                made.append((group, CompactedRange(**report["made"])))
            if made:
                self._switch(planned, made)

    def _switch(self, planned: CompactionPlan, made: Sequence[tuple[FileGroup, CompactedRange]]) -> None:
        told = {r.put_id for r in self._place.call(switch, self._place.store, self._work.layout, planned, made)}
        for group, result in made:
            if result.put_id not in told:
                self._found.given_up.add(planned.partition)
                continue
            self._found.files_after += 1
            self._found.bytes_after += result.size
            self._found.rows += result.rows
            self._done(group)


async def _planned(
    store: Store, layout: ProcessorLayout, target_size: int, older_than: float
) -> tuple[pa.Schema, list[CompactionPlan]]:
    if (problem := await missing_processor(store, layout.processor)) is not None:
        raise UsageError(problem)
    partitions = await partitions_with_state(store, layout)
    plans = await plan(store, layout, partitions, target_size=target_size, older_than=older_than)
    declared = await read_schema(store, layout)  # after the listing: no file there has a column that is not in it
    if declared is None:
        raise CorruptObject(layout.schema, "is missing; every processor writes it as it starts", store.url)
    return output_schema(declared), plans
