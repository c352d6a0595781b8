"""`compact`: Spark rewrites small committed files into larger ones, some at a time, and switches readers to them.

Readers do not see a file that a task writes. The driver switches them to it, group by group, in the order of the
commits. So the job can be killed anywhere and run again. Protocol: docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import orjson
import pyarrow as pa
from msgspec.structs import asdict
from pyspark.sql import SparkSession

from actorproc.admin.audit import record_now
from actorproc.admin.compaction import CompactionPlan, FileGroup, merge, plan, sweep, switch
from actorproc.config.settings import Settings
from actorproc.config.units import count_of_bytes, duration
from actorproc.errors import CorruptObject, SourceError, UsageError
from actorproc.output.row_reader import partitions_with_state
from actorproc.retention.boundary import RETENTION, CompactedRange
from actorproc.rows.output_schema import output_schema
from actorproc.runtime.tasks import gather
from actorproc.spark.blocking_store import BlockingStore, open_blocking
from actorproc.spark.errors import translated
from actorproc.spark.output_dataset import check_processor, declared_schema
from actorproc.spark.session import is_connect, parallelism
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store

TARGET_SIZE = 128 * 2**20
"""Bytes: Spark's default size of a task's input. A task that writes such a file holds it in memory."""

_GROUPS_PER_CORE = 4  # in one Spark job: enough to even out tasks, few enough to lose when the job is killed
_NAMED_FILES = 10  # in the error that ends a compaction


@dataclass(slots=True)
class Compaction:
    """The plan of a compaction, and its result. Sizes are in bytes of files in the store."""

    plans: Sequence[CompactionPlan] = field(repr=False)
    files_before: int = 0
    """Files that are to be rewritten, or were."""
    bytes_before: int = 0
    files_after: int = 0
    bytes_after: int = 0
    rows: int = 0
    swept: int = 0
    """Compacted files that were deleted: replaced ones, and those that a killed job left."""
    contested: set[str] = field(default_factory=set)
    """Partitions at which another job was working; run the compaction again."""
    failed: list[CorruptObject | SourceError] = field(default_factory=list)
    """One error for each file that could not be compacted."""

    @property
    def groups(self) -> list[FileGroup]:
        """Each group becomes one file."""
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
    """Rewrite the small files of processor `name` into files of about `target_size` bytes.

    The readers of actorproc see each row exactly once at every moment. The originals stay until `actorproc trim`
    deletes them. A killed compaction can be run again, and two at once do no harm.

    Args:
        spark: a session; or a function that makes one, called only if there is something to do.
        container: URL.
        target_size: in bytes, or text such as "256MiB".
        older_than: compact only commits that are this old, in seconds or text such as "6h".
        keep: replaced compacted files stay this long, for queries that were planned before; at least an hour.
        dry_run: only plan.
        settings: how to reach the store; default: environment and `actorproc.toml`.
        began: called with the plan.
        done: called with each group after readers were switched to its file.

    Raises:
        UsageError: there is no such processor; an argument is wrong; or the session is one of Spark Connect.
        CorruptObject, SourceError: files are changed or missing. Everything else was compacted.
        StoreError: the store could not be read or written. Finished groups stay compacted.
    """
    if is_connect(spark):
        raise UsageError("compact needs a session in this process, such as local[*], not one of Spark Connect")
    target = count_of_bytes("target_size", target_size)
    age, kept = duration("older_than", older_than), duration("keep", keep)
    if kept < RETENTION:
        raise UsageError(
            f"keep = {kept:g} s: at least {RETENTION:g} s (1h); queries that were planned before still read the files"
        )
    settings = settings or Settings.load()
    layout = ProcessorLayout(name)
    with open_blocking(container, settings) as blocking:
        schema, plans = blocking.call(_plan, blocking.store, layout, target, age)
        found = Compaction(plans)
        found.files_before = sum(group.files for group in found.groups)
        found.bytes_before = sum(group.size for group in found.groups)
        found.failed += [planned.lost for planned in plans if planned.lost is not None]
        began(found)
        if not dry_run:
            try:
                if found.groups:
                    rewrite = partial(_rewrite, blocking.store.url, settings, layout, schema)
                    session = spark if isinstance(spark, SparkSession) else spark()
                    _Driver(session, blocking, layout, rewrite, found, done).run_all()
                swept = blocking.call(
                    gather, [p.partition for p in plans], partial(sweep, blocking.store, layout, keep=kept)
                )
                found.swept = sum(len(deleted) for deleted in swept.values())
            finally:  # groups were rewritten although a later one failed
                if found.files_after or found.swept:
                    blocking.call(_record, blocking.store, layout, found, target)
    if len(found.failed) == 1:
        raise found.failed[0]
    if found.failed:
        named = "; ".join(map(str, found.failed[:_NAMED_FILES]))
        raise SourceError(f"{len(found.failed)} files keep others from being compacted, for example {named}")
    return found


def _rewrite(
    url: str,
    settings: Settings,
    layout: ProcessorLayout,
    schema: pa.Schema,
    groups: Sequence[FileGroup],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """In a task: rewrite the groups whose indices arrive. A bad file is reported, not raised: a retry cannot help."""
    with open_blocking(url, settings) as blocking:
        for index in (value.as_py() for batch in batches for value in batch.column(0)):
            try:
                made = blocking.call(merge, blocking.store, layout, groups[index], schema)
                report: dict[str, object] = {"made": made and asdict(made)}
            except CorruptObject as error:
                report = {"corrupt": error.args}
            except pa.ArrowException as error:
                first = layout.output_file(groups[index].partition, groups[index].first)
                report = {"corrupt": (first, f"cannot be merged with the files after it: {error}", url)}
            yield pa.record_batch([[index], [orjson.dumps(report)]], schema=_REPORT)


_REPORT = pa.schema([("group", pa.int64()), ("report", pa.binary())])


@dataclass
class _Driver:
    """Runs `rewrite` in tasks, and switches readers to the new files."""

    spark: SparkSession
    blocking: BlockingStore
    layout: ProcessorLayout
    rewrite: Callable[..., Iterator[pa.RecordBatch]]
    found: Compaction
    done: Callable[[FileGroup], None]
    stopped: set[str] = field(default_factory=set)
    """Partitions with a bad original."""

    def run_all(self) -> None:
        """Rewrite all groups except those with bad files.

        Raises:
            ActorprocError: a task failed on every try.
        """
        groups = self.found.groups
        with translated("rewriting files", "rewrites files", "Rewritten files stay; run it again"):
            at_once = parallelism(self.spark) * _GROUPS_PER_CORE
            for start in range(0, len(groups), at_once):
                self._run(groups[start : start + at_once])

    def _run(self, groups: Sequence[FileGroup]) -> None:
        """Rewrite some groups in one Spark job, and switch readers to the new files."""
        groups = [group for group in groups if group.partition not in self.stopped | self.found.contested]
        if not groups:
            return
        frame = self.spark.range(0, len(groups), 1, len(groups)).mapInArrow(
            partial(self.rewrite, groups), "group long, report binary"
        )
        reports = {row["group"]: orjson.loads(bytes(row["report"])) for row in frame.collect()}
        for planned in self.found.plans:
            made = []
            for index, group in enumerate(groups):
                if group.partition != planned.partition:
                    continue
                report = reports[index]
                if "corrupt" in report:
                    self.found.failed.append(CorruptObject(*report["corrupt"]))
                    if not group.originals:
                        continue  # compacted before: readers stay where they are, and later groups can go on
                    self.stopped.add(planned.partition)  # originals are compacted in order
                    break
                if not report["made"]:
                    self.found.contested.add(planned.partition)
                    break
                made.append((group, CompactedRange(**report["made"])))
            if made:
                self._switch(planned, made)

    def _switch(self, planned: CompactionPlan, made: Sequence[tuple[FileGroup, CompactedRange]]) -> None:
        ranges = self.blocking.call(switch, self.blocking.store, self.layout, planned, made)
        switched = {result.put_id for result in ranges}
        for group, result in made:
            if result.put_id not in switched:
                self.found.contested.add(planned.partition)
                continue
            self.found.files_after += 1
            self.found.bytes_after += result.size
            self.found.rows += result.rows
            self.done(group)


async def _record(store: Store, layout: ProcessorLayout, found: Compaction, target_size: int) -> None:
    effect = f"files made of smaller ones: {found.files_after:,}; replaced files deleted: {found.swept:,}"
    await record_now(store, layout.audit, "compact", {"target_size": f"{target_size:,} bytes"}, effect)


async def _plan(
    store: Store, layout: ProcessorLayout, target_size: int, older_than: float
) -> tuple[pa.Schema, list[CompactionPlan]]:
    await check_processor(store, layout)
    partitions = await partitions_with_state(store, layout)
    plans = await plan(store, layout, partitions, target_size=target_size, older_than=older_than)
    # After the listing: it has all columns of the listed files.
    return output_schema(await declared_schema(store, layout)), plans
