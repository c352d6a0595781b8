"""The last day of a processor, from the histories of its hosts: lag, rate, dead letters, owners, and marks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from actorproc.admin.audit import Act, read_audit
from actorproc.config.settings import Settings
from actorproc.errors import CorruptObject
from actorproc.group.history import KEPT, Life, Value, decode_history
from actorproc.runtime.tasks import gather
from actorproc.storage.names import ProcessorLayout, natural
from actorproc.storage.store import Store

READ_EVERY = 30.0
"""Seconds between two looks at the files of hosts."""

MOST_MARKS = 200
"""Marks in an answer: the latest."""

_CARRIED = 2  # steps for which a lag stays as it was while no host reports the partition, as it moves

_Matrix = np.ndarray[Any, np.dtype[Any]]


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """Something that may explain a change. `time`: seconds since 1970."""

    time: float
    kind: str
    """"start" (of hosts, with the differences to their lives before) or "act" (of an operator)."""
    text: str


class Series(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One value for each step of `interval` seconds from `start` on; None: not known."""

    start: float
    interval: float
    lag: list[int | None]
    records: list[int]
    dead_letters: list[int]
    troubled: list[int]
    """Partitions in trouble."""
    owners: list[tuple[int, str]] = []
    """Of one partition: the step from which a host ran it, and the host."""
    marks: list[Mark] = []
    trouble: dict[str, list[int]] = {}
    """Of the whole processor: the steps in which a partition was in trouble, for those that were."""


class Day:
    """All samples of the last day, by partition and step. Steps that are not over are left out.

    Args:
        files: the histories of the hosts.
        now: by the store's clock.
    """

    def __init__(self, files: Iterable[tuple[Life, pa.Table]], now: float) -> None:
        found = [(life, table) for life, table in files if table.num_rows]
        self.interval = max((life.interval for life, _ in found), default=Settings().history_interval)
        self.steps = max(1, int(KEPT / self.interval))
        self.start = (now // self.interval - self.steps) * self.interval
        names = {name for _, table in found for name in pc.unique(table["partition"]).to_pylist()}
        self.partitions = {name: row for row, name in enumerate(sorted(names, key=natural))}
        self._hosts = sorted({life.host for life, _ in found})
        shape = len(self.partitions), self.steps
        self._lag: _Matrix = np.full(shape, np.nan)
        self._records: _Matrix = np.zeros(shape, np.int64)
        self._dead_letters: _Matrix = np.zeros(shape, np.int64)
        self._troubled: _Matrix = np.zeros(shape, bool)
        self._owner: _Matrix = np.full(shape, -1)
        self._sampled_at: _Matrix = np.full(shape, -np.inf)
        for life, table in found:
            self._add(life, table)

    def _add(self, life: Life, table: pa.Table) -> None:
        times = table["time"].cast(pa.int64()).to_numpy() / 1000
        steps = ((times - self.start) // self.interval).astype(int)
        rows = pc.index_in(table["partition"], pa.array(self.partitions)).to_numpy()
        within = (steps >= 0) & (steps < self.steps)
        at = rows[within], steps[within]
        np.add.at(self._records, at, table["records"].to_numpy()[within])
        np.add.at(self._dead_letters, at, table["dead_letters"].to_numpy()[within])
        self._troubled[at] |= pc.is_valid(table["trouble"]).to_numpy()[within]
        is_latest = times[within] >= self._sampled_at[at]
        at = at[0][is_latest], at[1][is_latest]
        self._sampled_at[at] = times[within][is_latest]
        self._lag[at] = table["lag"].cast(pa.float64()).to_numpy(zero_copy_only=False)[within][is_latest]
        self._owner[at] = self._hosts.index(life.host)

    def total(self) -> Series:
        """All partitions together."""
        lag = self._lag.copy()
        for _ in range(_CARRIED):
            is_moving = (self._owner[:, 1:] < 0) & np.isnan(lag[:, 1:])
            lag[:, 1:] = np.where(is_moving, lag[:, :-1], lag[:, 1:])
        known = ~np.isnan(lag).all(axis=0) if len(lag) else np.zeros(self.steps, bool)
        series = self._series(
            np.where(known, np.nansum(lag, axis=0), np.nan), self._records.sum(axis=0),
            self._dead_letters.sum(axis=0), self._troubled.sum(axis=0),
        )  # fmt: skip
        trouble = {name: np.flatnonzero(self._troubled[row]).tolist() for name, row in self.partitions.items()}
        return msgspec.structs.replace(series, trouble={name: steps for name, steps in trouble.items() if steps})

    def of(self, partition: str) -> Series:
        """One partition; nothing is known of one that no host has reported."""
        row = self.partitions.get(partition)
        if row is None:
            nothing = np.zeros(self.steps, np.int64)
            return self._series(np.full(self.steps, np.nan), nothing, nothing, nothing)
        series = self._series(self._lag[row], self._records[row], self._dead_letters[row], self._troubled[row])
        return msgspec.structs.replace(series, owners=self._owners(self._owner[row]))

    def _series(self, lag: _Matrix, records: _Matrix, dead_letters: _Matrix, troubled: _Matrix) -> Series:
        return Series(
            start=self.start, interval=self.interval, lag=[None if np.isnan(one) else int(one) for one in lag],
            records=records.tolist(), dead_letters=dead_letters.tolist(), troubled=troubled.astype(int).tolist(),
        )  # fmt: skip

    def _owners(self, owners: _Matrix) -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = []
        for step, owner in enumerate(owners):
            if owner >= 0 and (not found or found[-1][1] != self._hosts[owner]):
                found.append((step, self._hosts[owner]))
        return found


class HistoryReader:
    """Reads the histories of a processor's hosts, those again that have changed."""

    def __init__(self, store: Store, layout: ProcessorLayout) -> None:
        self._store = store
        self._layout = layout
        self._files: dict[str, tuple[str, tuple[Life, pa.Table] | None]] = {}  # by key, with the tag
        self._day = Day((), 0.0)
        self._marks: list[Mark] = []
        self._read_at = -READ_EVERY

    async def read(self, partition: str | None = None) -> Series:
        """The last day of the processor with its marks, or of one partition. Corrupt files are left out.

        Raises:
            StoreError: the store failed.
        """
        clock = self._store.clock
        if clock.monotonic() >= self._read_at + READ_EVERY:
            await self._refresh()
            self._read_at = clock.monotonic()
        day = self._day
        series = await clock.run_in_thread(day.total) if partition is None else day.of(partition)
        return msgspec.structs.replace(series, marks=self._marks)

    async def _refresh(self) -> None:
        listing = await self._store.list(self._layout.history)
        fresh = {e.key: e for e in listing.entries if e.key.endswith(".parquet") and e.modified > listing.now - KEPT}
        wanted = [key for key, entry in fresh.items() if key not in self._files or self._files[key][0] != entry.tag]
        found = await gather(wanted, self._read_file)
        self._files = {key: file for key, file in self._files.items() if key in fresh} | {
            key: (fresh[key].tag, file) for key, file in found.items()
        }
        files = [file for _, file in self._files.values() if file is not None]
        self._day = await self._store.clock.run_in_thread(Day, files, listing.now)
        acts = await read_audit(self._store, self._layout.audit, MOST_MARKS, since=listing.now - KEPT)
        lives = sorted((life for life, _ in files), key=lambda life: life.started)
        found_marks = [*starts(lives, self._day.interval), *map(_of_act, acts)]
        since = listing.now - KEPT
        self._marks = sorted((m for m in found_marks if m.time >= since), key=lambda m: m.time)[-MOST_MARKS:]

    async def _read_file(self, key: str) -> tuple[Life, pa.Table] | None:
        stored = await self._store.get(key)
        try:
            return None if stored is None else await self._store.clock.run_in_thread(decode_history, key, stored.body)
        except CorruptObject:
            return None  # its host writes it again


def starts(lives: Sequence[Life], within: float) -> list[Mark]:
    """A mark for hosts that started `within` seconds of one another, with the differences to the life before. A host
    that starts again so soon gets a mark of its own.

    Args:
        lives: by their start. A host is compared with its own life before, or else with the latest host that started.
    """
    groups: list[list[Life]] = []
    for life in lives:
        is_new = bool(groups) and life.host not in {other.host for other in groups[-1]}
        if is_new and life.started - groups[-1][-1].started < within:
            groups[-1].append(life)
        else:
            groups.append([life])
    marks: list[Mark] = []
    before: dict[str, Life] = {}
    latest: Life | None = None
    for group in groups:
        differences: dict[str, None] = {}
        verb = "restarted" if all(life.host in before for life in group) else "started"
        for life in group:
            differences |= dict.fromkeys(_differences(before.get(life.host, latest), life))
            before[life.host] = latest = life
        names = ", ".join(life.host for life in group[:3]) + (f" and {len(group) - 3} more" if len(group) > 3 else "")
        text = "; ".join([f"{names} {verb}", *differences])
        marks.append(Mark(time=group[0].started, kind="start", text=text))
    return marks


def _differences(before: Life | None, life: Life) -> list[str]:
    if before is None:
        return []
    facts = [
        ("actorproc", before.release, life.release), ("version", before.app_version, life.app_version),
        ("handler", before.handler, life.handler),
    ]  # fmt: skip
    names = sorted({*before.settings, *life.settings})
    facts += [(name, _value(name, before.settings), _value(name, life.settings)) for name in names]
    return [f"{name}: {was or 'none'} → {now or 'none'}" for name, was, now in facts if was != now]


def _value(name: str, settings: Mapping[str, Value]) -> str:
    """A setting of a host, whose version of actorproc may know other settings than this one."""
    field = Settings.model_fields.get(name)
    value = settings.get(name, field.default if field else "default")
    return f"{value:g}" if isinstance(value, float) else str(value)


def _of_act(act: Act) -> Mark:
    return Mark(time=act.time, kind="act", text=f"{act.text} by {act.who}" + (f": {act.reason}" if act.reason else ""))
