"""Plans reading on Spark's driver: where a query starts, how far a micro-batch goes, and which task reads which
files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence

from actorproc.errors import SourceError
from actorproc.runtime.tasks import gather
from actorproc.spark.dataset import Span, SparkDataset
from actorproc.spark.options import ReadOptions, check_partitions
from actorproc.storage.listing import DataFile
from actorproc.storage.store import Store

Numbers = dict[str, int]
"""Partition -> number of the file to read next."""

_FILE_WEIGHT = 64 * 2**10  # bytes: the cost of opening a file, beside its own size
_PAGE = 1_000  # files in the first listing
_NO_LIMIT = 2**63
_MOST_LISTED = 10_000  # files of a partition, at a trigger with a limit


async def initial_numbers(options: ReadOptions, store: Store) -> Numbers:
    """Where a query without a checkpoint starts.

    Raises:
        UsageError: a partition named in the options does not exist.
    """
    dataset, existing = options.dataset, await options.dataset.partitions(store)
    check_partitions(options.named_partitions, existing, options.title)
    partitions = options.select(existing)
    lowest = await dataset.lowest(store, partitions)

    numbers = {partition: lowest.get(partition, 0) for partition in partitions}
    later = [partition for partition in partitions if options.start_of(partition) > 0]
    files = await dataset.files(store, {partition: numbers[partition] for partition in later})

    async def first(partition: str) -> int:
        listed = files[partition]
        index = await dataset.seek(store, partition, listed, options.start_of(partition))
        if index < len(listed):
            return listed[index].number
        return listed[-1].next if listed else numbers[partition]  # no listed file has such rows

    return numbers | dict(await gather(later, first))


async def plan_batch(options: ReadOptions, store: Store) -> list[Span]:
    """Everything that a batch query reads.

    Raises:
        UsageError: a partition named in the options does not exist.
    """
    start = await initial_numbers(options, store)
    files = await options.dataset.files(store, start)
    stops = {partition: found[-1].next for partition, found in files.items() if found}
    if not options.dataset.dense:  # a file created during the first listing leaves no visible gap: list again
        files = await _files_between(options.dataset, store, {p: start.get(p, 0) for p in stops}, stops)
    return await _spans(options.dataset, store, start, stops, files)


async def plan_micro_batch(options: ReadOptions, store: Store, start: Numbers, stop: Numbers) -> list[Span]:
    """Everything between two offsets.

    Raises:
        SourceError: some of it was trimmed; names the partition and the numbers.
    """
    moved = {partition: end for partition, end in stop.items() if end > start.get(partition, 0)}
    files = await _files_between(options.dataset, store, {p: start.get(p, 0) for p in moved}, moved)
    return await _spans(options.dataset, store, start, moved, files)


async def _files_between(
    dataset: SparkDataset, store: Store, start: Numbers, stop: Numbers
) -> Mapping[str, Sequence[DataFile]]:
    """The files from `start` on and before `stop`. Few files beyond are listed: there may be very many."""
    found: dict[str, Sequence[DataFile]] = {}
    limit = _PAGE
    while todo := {partition: first for partition, first in start.items() if partition not in found}:
        most = min(limit, max(stop[partition] - first for partition, first in todo.items()))
        for partition, files in (await dataset.files(store, todo, most)).items():
            enough = len(files) < most or files[-1].next >= stop[partition]
            if enough or most >= stop[partition] - todo[partition]:
                found[partition] = files
        limit *= 8
    return found


async def _spans(
    dataset: SparkDataset, store: Store, start: Numbers, stops: Numbers, files: Mapping[str, Sequence[DataFile]]
) -> list[Span]:
    found = {partition: [file for file in files[partition] if file.number < stop] for partition, stop in stops.items()}
    await dataset.check_not_trimmed(store, found, start)
    spans = []
    for partition, inside in found.items():
        first = start.get(partition, 0)
        if dataset.dense and (not inside or inside[0].number != first):
            # The first file exists: it was created during the listing.
            inside.insert(0, DataFile(first, first + 1, dataset.key(partition, first), 0, 0.0))
        spans.append(Span(partition, inside, stops[partition]))
    return spans


async def latest_numbers(
    options: ReadOptions, store: Store, start: Numbers, *, limited: bool, target: Numbers | None
) -> tuple[Numbers, Numbers]:
    """The end of the next micro-batch, and the end of everything that was seen.

    Args:
        start: end of the previous micro-batch.
        limited: whether `max_rows` and `max_files` apply.
        target: numbers that must not be passed.

    Raises:
        SourceError: the dataset is gone, or some of it was trimmed before it was read.
    """
    dataset, partitions = options.dataset, options.select(await options.dataset.partitions(store))
    if not partitions and any(start.values()):
        raise SourceError(
            f"{dataset.title(store.url)} is gone: it has no partitions, and this query has read from "
            f"{', '.join(start)}. Is the right folder or bucket mounted? Once it is back, the query continues where "
            "it stopped"
        )
    limited = limited and bool(options.max_rows or options.max_files)
    fresh = await _new_files(options, store, partitions, start, limited=limited, target=target)
    known = {partition: start.get(partition, 0) for partition in {*partitions, *start}}
    ends = dict(await gather(list(fresh), lambda p: dataset.next_number(store, p, fresh[p][-1])))
    if target is not None:  # it may be within a file that was compacted since
        ends = {p: min(end, target[p]) for p, end in ends.items()}
    end_of_all = known | ends
    if not limited:
        return end_of_all, end_of_all
    await dataset.check_not_trimmed(store, fresh, start)
    taken = await _files_within_limits(options, store, start, fresh, ends)
    end = {p: fresh[p][count].number if count < len(fresh[p]) else ends[p] for p, count in taken.items()}
    return known | end, end_of_all


async def _new_files(
    options: ReadOptions,
    store: Store,
    partitions: Sequence[str],
    start: Numbers,
    *,
    limited: bool,
    target: Numbers | None,
) -> Mapping[str, Sequence[DataFile]]:
    """The files of each partition after `start`, without partitions that have none."""
    most_files, most_rows = options.max_files or _NO_LIMIT, options.max_rows or _NO_LIMIT
    # A trigger with a limit need not list everything beyond it.
    most = min(most_files if options.max_files else _MOST_LISTED, _MOST_LISTED) + 1 if limited else None
    found = await options.dataset.files(store, {p: start.get(p, 0) for p in partitions}, most)
    if limited:
        listed = found
        found = await gather(
            list(listed), lambda p: options.dataset.split_compacted(store, listed[p], most_files, most_rows)
        )
    if target is not None:
        found = {p: [file for file in files if file.number < target.get(p, 0)] for p, files in found.items()}
    return {partition: files for partition, files in found.items() if files}


async def _files_within_limits(
    options: ReadOptions, store: Store, start: Numbers, fresh: Mapping[str, Sequence[DataFile]], ends: Numbers
) -> Mapping[str, int]:
    """How many files of each partition to take: the oldest of all partitions, so that none gets ahead; at least one."""
    order = _oldest_first(fresh)

    async def rows(count: int) -> int:
        taken = Counter(order[:count])

        async def of(partition: str) -> int:
            files = fresh[partition]
            after = ends[partition] if taken[partition] == len(files) else files[taken[partition]].number
            return await options.dataset.rows(store, partition, start.get(partition, 0), after)

        return sum((await gather(list(taken), of)).values())

    count = min(len(order), options.max_files or len(order))
    if options.max_rows:
        count = await most_within(count, rows, options.max_rows)
    return Counter(order[: max(1, count)])


def _oldest_first(fresh: Mapping[str, Sequence[DataFile]]) -> list[str]:
    """The partition of each file, oldest file first. Within a partition numbers decide: a store's clock may go back."""
    order: list[tuple[float, str]] = []
    for partition, files in fresh.items():
        latest = 0.0
        for file in files:
            latest = max(latest, file.time)
            order.append((latest, partition))
    return [partition for _, partition in sorted(order)]


async def most_within(count: int, cost: Callable[[int], Awaitable[int]], limit: int) -> int:
    """The greatest number up to `count` whose cost is at most `limit`. The cost grows with the number."""
    if (most := await cost(count)) <= limit:  # the usual case
        return count
    low, least, by_share = 0, 0, True
    while count - low > 1:  # the cost of `count` is above the limit, that of `low` is not
        share = (limit - least) * (count - low) // (most - least) if by_share else (count - low) // 2
        middle = min(max(low + share, low + 1), count - 1)
        if (found := await cost(middle)) <= limit:
            low, least = middle, found
        else:
            count, most = middle, found
        by_share = not by_share  # interpolation suits files of similar size; bisection covers the rest
    return low


def split_into_tasks(spans: Sequence[Span], tasks: int) -> list[list[Span]]:
    """Cut the spans between files into at most `tasks` parts of about equal weight, in order."""
    total = sum(file.size + _FILE_WEIGHT for span in spans for file in span.files)
    parts: list[list[Span]] = [[] for _ in range(tasks)]
    passed = 0
    for partition, files, stop in spans:
        begin = part = 0
        for index, file in enumerate(files):
            weight = file.size + _FILE_WEIGHT
            middle = (2 * passed + weight) * tasks // (2 * total)  # a file goes where its middle is
            if begin < index and middle != part:
                parts[part].append(Span(partition, files[begin:index], file.number))
                begin = index
            part = middle
            passed += weight
        if begin < len(files):
            parts[part].append(Span(partition, files[begin:], stop))
    return [part for part in parts if part]
