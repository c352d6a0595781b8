"""What Spark's driver does: find what is new, bound it by the limits, and deal it out to tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from actorproc.errors import SourceError
from actorproc.runtime.tasks import gather
from actorproc.spark.dataset import Dataset, Span
from actorproc.spark.options import ReadOptions, check_partitions
from actorproc.storage.listing import DataFile
from actorproc.storage.store import Store

Numbers = dict[str, int]
"""Partition -> number of the file to read next."""

_FILE_WEIGHT = 64 * 2**10  # what a file costs beside its bytes, in bytes
_PAGE = 1_000  # files listed at once, at first
_NO_LIMIT = 2**63
_MOST_LISTED = 10_000  # of a partition's files at a trigger that takes a bounded number of rows


async def partitions_of(request: ReadOptions, store: Store) -> list[str]:
    """The partitions to read, of those there are now."""
    return request.of(await request.dataset.partitions(store))


async def initial_numbers(request: ReadOptions, store: Store) -> Numbers:
    """Where a query that has no checkpoint begins.

    Raises:
        UsageError: a partition that is asked for does not exist.
    """
    dataset, there = request.dataset, await request.dataset.partitions(store)
    check_partitions(request.named, there, request.what)
    partitions = request.of(there)
    lowest = await dataset.lowest(store, partitions)

    numbers = {partition: lowest.get(partition, 0) for partition in partitions}
    later = [partition for partition in partitions if request.start_of(partition) > 0]
    files = await dataset.files(store, {partition: numbers[partition] for partition in later})

    async def first(partition: str) -> int:
        there = files[partition]
        index = await dataset.seek(store, partition, there, request.start_of(partition))
        if index < len(there):
            return there[index].number
        return there[-1].next if there else numbers[partition]  # none that is there may have such rows

    return numbers | dict(await gather(later, first))


async def plan_batch(request: ReadOptions, store: Store) -> list[Span]:
    """All that a batch query reads.

    Raises:
        UsageError: a partition that is asked for does not exist.
    """
    start = await initial_numbers(request, store)
    files = await request.dataset.files(store, start)
    stops = {partition: found[-1].next for partition, found in files.items() if found}
    if not request.dataset.dense:  # what was made while that was listed is not seen by a gap
        files = await _before(
            request.dataset, store, {partition: start.get(partition, 0) for partition in stops}, stops
        )
    return await _spans(request.dataset, store, start, stops, files)


async def plan_micro_batch(request: ReadOptions, store: Store, start: Numbers, stop: Numbers) -> list[Span]:
    """What lies between two offsets.

    Raises:
        SourceError: some of it was trimmed; names the partition and the numbers.
    """
    moved = {partition: end for partition, end in stop.items() if end > start.get(partition, 0)}
    files = await _before(request.dataset, store, {partition: start.get(partition, 0) for partition in moved}, moved)
    return await _spans(request.dataset, store, start, moved, files)


async def _before(dataset: Dataset, store: Store, start: Numbers, stop: Numbers) -> Mapping[str, Sequence[DataFile]]:
    """The files from `start` on and before `stop`, and hardly more: much may lie beyond."""
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
    dataset: Dataset, store: Store, start: Numbers, stops: Numbers, files: Mapping[str, Sequence[DataFile]]
) -> list[Span]:
    found = {partition: [file for file in files[partition] if file.number < stop] for partition, stop in stops.items()}
    await dataset.check(store, found, start)
    spans = []
    for partition, inside in found.items():
        first = start.get(partition, 0)
        if dataset.dense and (not inside or inside[0].number != first):
            # It is there, and was made while it was listed.
            inside.insert(0, DataFile(first, first + 1, dataset.key(partition, first), 0, 0.0))
        spans.append(Span(partition, inside, stops[partition]))
    return spans


async def latest_numbers(
    request: ReadOptions, store: Store, start: Numbers, *, limited: bool, target: Numbers | None
) -> tuple[Numbers, Numbers]:
    """How far the next micro-batch goes, and how far everything goes that was seen.

    Args:
        start: where the last one ended.
        limited: whether `max_rows` and `max_files` bound it.
        target: numbers that must not be passed, where there are any.

    Raises:
        SourceError: the dataset is gone, or some of it was trimmed before it was read.
    """
    dataset = request.dataset
    partitions = await partitions_of(request, store)
    if not partitions and any(start.values()):
        raise SourceError(
            f"{dataset.at(store.url)} is gone: there is not one partition, and this query has read from {', '.join(start)}. "
            "Is the folder or bucket still what it was? Once it is back the query goes on where it stopped"
        )
    limited = limited and bool(request.max_rows or request.max_files)
    # With a target everything was listed once; else what lies beyond the limit need not be seen at every trigger.
    most = min(request.max_files or _MOST_LISTED, _MOST_LISTED) + 1 if limited else None

    found = await dataset.files(store, {partition: start.get(partition, 0) for partition in partitions}, most)
    if limited:
        listed, files, rows = found, request.max_files or _NO_LIMIT, request.max_rows or _NO_LIMIT
        found = await gather(list(listed), lambda p: dataset.split_compacted(store, listed[p], files, rows))
    if target is not None:
        found = {p: [file for file in files if file.number < target.get(p, 0)] for p, files in found.items()}
    fresh = {partition: files for partition, files in found.items() if files}
    known = {partition: start.get(partition, 0) for partition in {*partitions, *start}}
    ends = dict(await gather(list(fresh), lambda p: dataset.after(store, p, fresh[p][-1])))
    if target is not None:  # which may lie within a file that was compacted since
        ends = {p: min(end, target[p]) for p, end in ends.items()}
    end_of_all = known | ends
    if not limited:
        return end_of_all, end_of_all
    await dataset.check(store, fresh, start)
    taken = await _share(request, store, start, fresh, ends)
    end = {p: fresh[p][count].number if count < len(fresh[p]) else ends[p] for p, count in taken.items() if count}
    return known | end, end_of_all


async def _share(
    request: ReadOptions, store: Store, start: Numbers, fresh: Mapping[str, Sequence[DataFile]], ends: Numbers
) -> Mapping[str, int]:
    """How many files of each partition to take: the oldest over all partitions, so that none runs ahead of the others;
    at least one."""
    order: list[tuple[float, str]] = []
    for partition, files in fresh.items():
        latest = 0.0
        for file in files:  # a store's clock may step back; within a partition the numbers know better
            latest = max(latest, file.time)
            order.append((latest, partition))
    order.sort()

    def first(count: int) -> dict[str, int]:
        taken = dict.fromkeys(fresh, 0)
        for _, partition in order[:count]:
            taken[partition] += 1
        return taken

    async def rows(count: int) -> int:
        taken = first(count)

        async def of(partition: str) -> int:
            files, number = fresh[partition], start.get(partition, 0)
            after = ends[partition] if taken[partition] == len(files) else files[taken[partition]].number
            return await request.dataset.rows(store, partition, number, after) if taken[partition] else 0

        return sum((await gather(list(fresh), of)).values())

    count = min(len(order), request.max_files or len(order))
    if request.max_rows:
        count = await most_within(count, rows, request.max_rows)
    return first(max(1, count))


async def most_within(count: int, cost: Callable[[int], Awaitable[int]], limit: int) -> int:
    """The greatest number up to `count` that does not cost more than `limit`; the cost grows with the number."""
    if (most := await cost(count)) <= limit:  # as nearly always
        return count
    low, least, by_share = 0, 0, True
    while count - low > 1:  # what `count` costs is too much
        share = (limit - least) * (count - low) // (most - least) if by_share else (count - low) // 2
        middle = min(max(low + share, low + 1), count - 1)
        if (found := await cost(middle)) <= limit:
            low, least = middle, found
        else:
            count, most = middle, found
        by_share = not by_share  # files are about alike; if they are not, halves get there
    return low


def split_into_tasks(spans: Sequence[Span], tasks: int) -> list[list[Span]]:
    """The spans cut between files into at most `tasks` parts of about the same weight, in order."""
    whole = sum(file.size + _FILE_WEIGHT for span in spans for file in span.files)
    parts: list[list[Span]] = [[] for _ in range(tasks)]
    passed = 0
    for partition, files, stop in spans:
        begin = part = 0
        for at, file in enumerate(files):
            weight = file.size + _FILE_WEIGHT
            here = (2 * passed + weight) * tasks // (2 * whole)  # where its middle is: a file of weight may lie across
            if begin < at and here != part:
                parts[part].append(Span(partition, files[begin:at], file.number))
                begin = at
            part = here
            passed += weight
        if begin < len(files):
            parts[part].append(Span(partition, files[begin:], stop))
    return [part for part in parts if part]
