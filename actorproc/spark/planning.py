"""What Spark's driver does: find what is new, bound it by the limits, and deal it out to tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from actorproc.actor import gather
from actorproc.errors import SourceError, UsageError
from actorproc.spark.dataset import Dataset, File, Span
from actorproc.spark.request import Request
from actorproc.store import Store

Numbers = dict[str, int]
"""Partition -> number of the file to read next."""

_FILE_WEIGHT = 64 * 2**10  # what a file costs beside its bytes, in bytes
_PAGE = 1_000  # files listed at once, at first
_MOST_LISTED = 10_000  # of a partition's files at a trigger that takes a bounded number of rows


async def partitions_of(request: Request, store: Store) -> list[str]:
    """The partitions to read, of those there are now."""
    there = await request.dataset.partitions(store)
    return [partition for partition in there if request.partitions is None or partition in request.partitions]


async def beginning(request: Request, store: Store) -> Numbers:
    """Where a query that has no checkpoint begins."""
    dataset, partitions = request.dataset, await partitions_of(request, store)
    lowest = await dataset.lowest(store, partitions)

    async def first(partition: str) -> int:
        number, start = lowest.get(partition, 0), request.start_of(partition)
        if start <= 0:
            return number
        files = await dataset.files(store, partition, number)
        index = await dataset.seek(store, partition, files, start)
        return files[index].number if index < len(files) else number

    return dict(await gather(partitions, first))


async def everything(request: Request, store: Store) -> list[Span]:
    """All that a batch query reads.

    Raises:
        UsageError: a partition that is asked for does not exist.
    """
    if request.partitions is not None:
        there = await request.dataset.partitions(store)
        if missing := sorted(request.partitions.difference(there)):
            raise UsageError(f"{request.what} has no partition {', '.join(missing)}; there are: {', '.join(there)}")
    start = await beginning(request, store)
    files = await gather(list(start), lambda partition: request.dataset.files(store, partition, start[partition]))
    stops = {partition: found[-1].number + 1 for partition, found in files.items() if found}
    return await _spans(request.dataset, store, start, stops, files)


async def between(request: Request, store: Store, start: Numbers, stop: Numbers) -> list[Span]:
    """What lies between two offsets.

    Raises:
        SourceError: some of it was trimmed; names the partition and the numbers.
    """
    moved = {partition: end for partition, end in stop.items() if end > start.get(partition, 0)}

    async def inside(partition: str) -> list[File]:
        return await _before(request.dataset, store, partition, start.get(partition, 0), moved[partition])

    files = await gather(list(moved), inside)
    return await _spans(request.dataset, store, start, moved, files)


async def _before(dataset: Dataset, store: Store, partition: str, first: int, stop: int) -> list[File]:
    """The files from `first` on and before `stop`, and hardly more: much may lie beyond."""
    limit = _PAGE
    while True:
        limit = min(limit, stop - first)
        files = await dataset.files(store, partition, first, limit)
        if len(files) < limit or files[-1].number >= stop - 1 or limit == stop - first:
            return files
        limit *= 8


async def _spans(
    dataset: Dataset, store: Store, start: Numbers, stops: Numbers, files: Mapping[str, Sequence[File]]
) -> list[Span]:
    found = {partition: [file for file in files[partition] if file.number < stop] for partition, stop in stops.items()}
    await dataset.check(store, found, start)
    spans = []
    for partition, inside in found.items():
        listed = [(file.number, file.size) for file in inside]
        first = start.get(partition, 0)
        if dataset.dense and (not listed or listed[0][0] != first):
            listed.insert(0, (first, 0))  # it is there, and was made while it was listed
        spans.append(Span(partition, listed, stops[partition]))
    return spans


async def news(
    request: Request, store: Store, start: Numbers, *, limited: bool, target: Numbers | None
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

    async def look(partition: str) -> list[File]:
        found = await dataset.files(store, partition, start.get(partition, 0), most)
        return found if target is None else [file for file in found if file.number < target.get(partition, 0)]

    fresh = {partition: files for partition, files in (await gather(partitions, look)).items() if files}
    known = {partition: start.get(partition, 0) for partition in {*partitions, *start}}
    end_of_all = known | dict(await _ends(dataset, store, fresh, {p: len(files) for p, files in fresh.items()}))
    if not limited:
        return end_of_all, end_of_all
    await dataset.check(store, fresh, start)
    taken = await _share(request, store, start, fresh)
    return known | dict(await _ends(dataset, store, fresh, taken)), end_of_all


async def _ends(
    dataset: Dataset, store: Store, fresh: Mapping[str, Sequence[File]], taken: Mapping[str, int]
) -> Mapping[str, int]:
    """Partition -> number after its first `taken` files."""

    async def end(partition: str) -> int:
        files, count = fresh[partition], taken[partition]
        if count < len(files):
            return files[count].number
        return await dataset.after(store, partition, files[-1].number)

    return await gather([partition for partition in fresh if taken[partition]], end)


async def _share(
    request: Request, store: Store, start: Numbers, fresh: Mapping[str, Sequence[File]]
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
            after = files[-1].number + 1 if taken[partition] == len(files) else files[taken[partition]].number
            return await request.dataset.rows(store, partition, number, after) if taken[partition] else 0

        return sum((await gather(list(fresh), of)).values())

    count = min(len(order), request.max_files or len(order))
    if request.max_rows:
        count = await _most(count, rows, request.max_rows)
    return first(max(1, count))


async def _most(count: int, cost: Callable[[int], Awaitable[int]], limit: int) -> int:
    """The greatest number up to `count` that does not cost more than `limit`; the cost grows with the number."""
    low = 0
    while low < count:
        middle = (low + count + 1) // 2
        if await cost(middle) <= limit:
            low = middle
        else:
            count = middle - 1
    return low


def dealt(spans: Sequence[Span], tasks: int) -> list[list[Span]]:
    """The spans cut between files into at most `tasks` parts of about the same weight, in order."""
    whole = sum(size + _FILE_WEIGHT for span in spans for _, size in span.files)
    parts: list[list[Span]] = [[] for _ in range(tasks)]
    passed = 0
    for partition, files, stop in spans:
        begin, part = 0, passed * tasks // max(1, whole)
        for at, (number, size) in enumerate(files):
            here = passed * tasks // whole
            if here != part:
                parts[part].append(Span(partition, files[begin:at], number))
                begin, part = at, here
            passed += size + _FILE_WEIGHT
        if begin < len(files):
            parts[part].append(Span(partition, files[begin:], stop))
    return [part for part in parts if part]
