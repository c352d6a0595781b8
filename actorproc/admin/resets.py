"""Resets: an operator sets the committed cursor of partitions, whether hosts run or not.

Protocol: docs/protocol.md, 'Resets'. Model: tests/protocol/reset_model.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import pyarrow as pa

from actorproc.admin.audit import Act, record
from actorproc.admin.placement import nudge_members
from actorproc.config.settings import Settings
from actorproc.counts import Counts
from actorproc.errors import Fenced, PartitionGone, UsageError
from actorproc.group.format_versions import highest_of
from actorproc.group.membership import GroupDocument, read_group
from actorproc.output.chain import ChainEnd, Commit, OutputChain, encode_commit
from actorproc.output.checkpoint import WITH_RESETS, Reset
from actorproc.output.row_reader import partitions_with_state
from actorproc.output.schema_document import read_schema
from actorproc.records import SEQUENCE, Cursor
from actorproc.runtime.nudge import Nudges, UdpNudges
from actorproc.runtime.tasks import gather
from actorproc.sources.protocol import Source, Start, parse_time
from actorproc.sources.queue_protocol import QueueSource
from actorproc.storage.document import SharedDocument
from actorproc.storage.names import ProcessorLayout, natural
from actorproc.storage.store import Store

ResetTarget = Start | int
"""'earliest', 'latest', a time, the sequence of the next record, or minus the number of sequences to go back."""

_OTHERS = "'earliest', 'latest', a sequence, -N, or "


@dataclass(frozen=True, slots=True)
class PartitionReset:
    """The effect of a reset on one partition, planned or done.

    Attributes:
        repeats: records that are processed again; None if the source cannot tell.
        skips: records that are not processed; None if the source cannot tell.
        clears_state: all keyed state is dropped.
        refusal: why the partition is not reset; "" if it is.
    """

    partition: str
    first: Cursor
    next: Cursor
    repeats: int | None = None
    skips: int | None = None
    clears_state: bool = False
    refusal: str = ""
    known: str = ""
    """Id of the newest reset at the time of the dry run."""
    to_first_record: bool = False
    done: bool = False
    """The command has reset it before, and was cut short."""

    def document(self) -> dict[str, object]:
        """The JSON shape in docs/cli.md: a public contract."""
        return {
            "partition": self.partition, "from": self.first.sequence, "to": self.next.sequence,
            "repeats": self.repeats, "skips": self.skips, "clears_state": self.clears_state,
            "refusal": self.refusal or None,
        }  # fmt: skip


def parse_reset_target(text: str) -> ResetTarget:
    """The goal that an operator typed.

    Raises:
        UsageError: it is none.
    """
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdecimal() and len(digits) < 20:
        return int(text)
    if text == "earliest":
        return "earliest"
    return "latest" if text == "latest" else parse_time("to", text, _OTHERS)


async def named_partitions(store: Store, layout: ProcessorLayout, names: Collection[str]) -> list[str]:
    """The partitions of these names, or all that have begun. Raises UsageError: there is no such partition."""
    known = sorted(await partitions_with_state(store, layout), key=natural)
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"no partition {unknown[0]!r}; there are: {', '.join(known) or 'none yet'}")
    return [name for name in known if name in names] if names else known


class Resets:
    """Plans and carries out one command, which resets partitions of a processor.

    Args:
        source: that the processor reads, opened.
        who: for the audit, such as `ann@laptop`.
        command: id of the command. A partition that it has reset before is left as it is, so a command that was cut
            short can be run again. Default: a new one.

    Raises (every method):
        UsageError: there is no such partition, the source is a queue, or a host runs an earlier version.
        CorruptObject: a checkpoint or commit is corrupt.
        StoreError: the store failed. After StoreUnavailable a partition may be reset, or will be within minutes.
        SourceError: the source does not answer.
    """

    def __init__(
        self,
        store: Store,
        layout: ProcessorLayout,
        settings: Settings,
        source: Source,
        who: str,
        reason: str = "",
        nudges: Nudges | None = None,
        *,
        command: str = "",
    ) -> None:
        if isinstance(source, QueueSource):
            raise UsageError(f"{source} is a queue: what is acknowledged is gone, so there is nothing to go back to")
        self._store = store
        self._layout = layout
        self._source = source
        self._who = who
        self._reason = reason
        self.command = command or store.clock.nonce()
        self._nudges = nudges or UdpNudges(store.backend.route, settings.nudge_host, layout.processor)

    # Dry runs

    async def plan(self, goal: ResetTarget, partitions: Collection[str] = ()) -> list[PartitionReset]:
        """The effect that a reset of these partitions, or of all, would have. Writes nothing."""

        async def planned(partition: str, tip: ChainEnd) -> PartitionReset:
            try:
                target = await self._target(partition, tip, goal)
            except PartitionGone:
                target = "the source does not have it any more, so none of its records can be read again"
            if isinstance(target, str):
                return PartitionReset(partition, tip.cursor, tip.cursor, refusal=target)
            return self._judged(partition, tip, target, to_first_record=goal == "earliest")

        return await self._planned(partitions, planned)

    async def plan_undo(self, partitions: Collection[str] = ()) -> list[PartitionReset]:
        """The effect of undoing the latest reset, in all of its partitions or in these. Writes nothing."""
        names = await named_partitions(self._store, self._layout, partitions)
        tips = {name: tip for name, tip in (await gather(names, self._tip)).items() if tip is not None}
        begun = [tip for tip in tips.values() if self._made(tip)]  # with a command that was cut short
        before = {name: self._before(tip) for name, tip in tips.items()}
        candidates = [self._before(tip) for tip in begun] or before.values()
        latest = max((resets[-1] for resets in candidates if resets), key=_time_of, default=None)
        if latest is None:
            raise UsageError("there is no reset to undo")

        async def planned(partition: str, tip: ChainEnd) -> PartitionReset:
            newest = tip.resets[-1]
            found = self._judged(partition, tip, newest.first)
            if newest.clears_state:
                return replace(found, refusal="the reset has cleared its keyed state, which cannot be brought back")
            if newest.back and found.repeats:
                return replace(found, refusal="it has processed all that was repeated, and more")
            return found

        undone = [name for name, resets in before.items() if resets and resets[-1].id == latest.id]
        return await self._planned(undone, planned)

    async def _planned(
        self, partitions: Collection[str], planned: Callable[[str, ChainEnd], Awaitable[PartitionReset]]
    ) -> list[PartitionReset]:
        async def one(partition: str) -> PartitionReset:
            tip = await self._tip(partition)
            if tip is None:
                return PartitionReset(partition, Cursor(""), Cursor(""), refusal="it has not begun")
            if made := self._made(tip):
                return self._counted(
                    PartitionReset(partition, made.first, made.next, clears_state=made.clears_state, done=True)
                )
            if tip.ended:
                return PartitionReset(partition, tip.cursor, tip.cursor, refusal="it has ended, and others follow it")
            return await planned(partition, tip)

        return list((await gather(await named_partitions(self._store, self._layout, partitions), one)).values())

    def _made(self, tip: ChainEnd) -> Reset | None:
        """The effect of this command on a partition, if it has already run."""
        return next((reset for reset in tip.resets if reset.id == self.command), None)

    def _before(self, tip: ChainEnd) -> tuple[Reset, ...]:
        """The resets before this command."""
        made = self._made(tip)
        return tip.resets[: tip.resets.index(made)] if made else tip.resets

    async def _tip(self, partition: str) -> ChainEnd | None:
        """The end of the chain, from a walk that met no file below the boundary."""
        chain, boundary = OutputChain(self._store, self._layout, partition), 0
        while (tip := await chain.tip()) is not None:
            chain.check_not_below(boundary, tip.checkpoint.number)
            boundary = await chain.boundary()
            if boundary <= tip.checkpoint.number:
                break
        return tip

    async def _target(self, partition: str, tip: ChainEnd, goal: ResetTarget) -> Cursor | str:
        """The cursor that a goal means in this partition, or why it cannot be set."""
        source = self._source
        if goal == "latest" and (end := await source.end(partition)).sequence is not None:
            return Cursor(end.position, end.sequence)
        if not isinstance(goal, int):
            return self._cursor(partition, await source.start(partition, goal))
        before = source.sequence_before(partition, await source.start(partition, "earliest"))
        sequence, done = goal, self._done(partition, tip.cursor)
        if goal < 0:
            if done is None:
                return "the source cannot tell how far back that is; give a time or a sequence"
            sequence = max(done + 1 + goal, 0 if before is None else before + 1)
        newest = (await source.end(partition)).sequence
        if before is not None and sequence <= before:
            return f"the first record that is left is {before + 1}"
        if newest is not None and sequence > newest + 1:
            return f"the newest record is {newest}"
        return Cursor(await source.position_at(partition, sequence), sequence - 1)

    def _cursor(self, partition: str, position: str) -> Cursor:
        before = self._source.sequence_before(partition, position)
        return Cursor(position, -1 if before is None else before)

    def _done(self, partition: str, cursor: Cursor) -> int | None:
        """Sequence up to which the cursor has processed everything."""
        return cursor.sequence if cursor.sequence >= 0 else self._source.sequence_before(partition, cursor.position)

    def _judged(
        self, partition: str, tip: ChainEnd, target: Cursor, *, to_first_record: bool = False
    ) -> PartitionReset:
        """The effect of a move from the end of the chain to the target."""
        if (done := self._done(partition, target)) is not None:
            target = Cursor(target.position, done)  # a walk compares sequences
        found = self._counted(PartitionReset(partition, tip.cursor, target, to_first_record=to_first_record))
        known = tip.resets[-1].id if tip.resets else ""
        keeps_state = found.repeats == 0 or not tip.has_state or _only_undoes(tip, target)
        refusal = ""
        if found.repeats == found.skips == 0:
            refusal = "it is there already"
        elif not keeps_state and tip.checkpoint.inherited:
            before = ", ".join(tip.checkpoint.parents)
            refusal = f"a part of its keyed state is of partitions before it ({before}), and cannot be made again"
        elif not keeps_state and not to_first_record:
            refusal = "it has keyed state, which no record may change twice: go to 'earliest', which clears the state"
        return replace(found, known=known, clears_state=not keeps_state and to_first_record, refusal=refusal)

    def _counted(self, found: PartitionReset) -> PartitionReset:
        was, will = self._done(found.partition, found.first), self._done(found.partition, found.next)
        if was is None or will is None:
            return replace(found, repeats=None, skips=0 if found.to_first_record else None)
        between = self._source.records_between
        return replace(found, repeats=between(will, was) if will < was else 0, skips=between(was, will))

    # Carrying out

    async def carry_out(
        self,
        planned: Sequence[PartitionReset],
        to: Mapping[str, str],
        *,
        done: Callable[[PartitionReset], None] = lambda _: None,
    ) -> list[PartitionReset]:
        """Reset the partitions that the plan does not refuse, and let their hosts begin there.

        Args:
            to: the arguments of the command, for the audit.
            done: called with each partition.

        Returns:
            The effects. All counts are those of the moment of the reset.
        """
        schema = await self._checked_schema()
        wanted = {found.partition: found for found in planned if not found.refusal}
        holder = f"reset-{self.command}"
        held = {name: found.next.position for name, found in wanted.items() if not found.done}
        if held:
            await self._source.hold(holder, held)

        async def one(partition: str) -> PartitionReset:
            result = await self._reset(wanted[partition], schema)
            done(result)
            return result

        results = list((await gather(list(wanted), one)).values())
        await self._restart([found.partition for found in results if not found.refusal])
        await self._source.let_go(holder)  # not after an error: a reset may yet be applied
        act = Act(
            time=self._store.clock.wall(), who=self._who, what="reset", to={**to, "command": self.command},
            effect=summary(results), reason=self._reason,
        )  # fmt: skip
        await record(self._store, self._layout, act)
        return results

    async def _checked_schema(self) -> pa.Schema:
        group = await read_group(self._store, self._layout) or GroupDocument.of()
        if older := sorted(h for h, m in group.members.items() if highest_of(m.incarnation) < WITH_RESETS):
            raise UsageError(f"these hosts run an earlier version, which knows no reset: {', '.join(older)}")
        columns = await read_schema(self._store, self._layout)
        return pa.schema([*(columns or ()), SEQUENCE])

    async def _reset(self, planned: PartitionReset, schema: pa.Schema) -> PartitionReset:
        """Create the next file of the chain. See tests/protocol/reset_model.py for each step."""
        partition, clock = planned.partition, self._store.clock
        chain = OutputChain(self._store, self._layout, partition)
        while (tip := await self._tip(partition)) is not None:
            if made := self._made(tip):
                return self._counted(replace(planned, first=made.first, next=made.next))
            if refusal := self._refusal(planned, tip):
                return replace(planned, refusal=refusal)
            before = tip.newest or tip.checkpoint
            reset = Reset(
                id=self.command, number=tip.number, first=tip.cursor, next=planned.next,
                time=max(clock.wall(), before.time), who=self._who, reason=self._reason,
                clears_state=planned.to_first_record and tip.has_state, back=planned.repeats != 0,
            )  # fmt: skip
            commit = Commit(
                put_id=clock.nonce(), host=self._who, epoch=tip.checkpoint.epoch, first=reset.first, next=reset.next,
                totals=tip.totals + Counts(resets=1), time=reset.time, reset=reset, format_version=WITH_RESETS,
            )  # fmt: skip
            body, _ = await clock.run_in_thread(encode_commit, schema.empty_table(), commit, b"")
            try:
                await chain.create(tip.number, commit.put_id, body, ())
            except Fenced:
                continue  # an owner has committed meanwhile
            if await chain.boundary() <= tip.number:  # else the file is void
                return self._counted(replace(planned, first=reset.first, clears_state=reset.clears_state))
        return replace(planned, refusal="its checkpoint was deleted")

    def _refusal(self, planned: PartitionReset, tip: ChainEnd) -> str:
        """Why the plan does not hold any more; "" if it does."""
        now = self._judged(planned.partition, tip, planned.next, to_first_record=planned.to_first_record)
        if tip.ended:
            return "it has ended meanwhile"
        if now.known != planned.known:
            return "another reset was made meanwhile"
        if now.repeats and not planned.repeats:
            return "the partition has passed this position meanwhile"
        return now.refusal

    async def _restart(self, partitions: Collection[str]) -> None:
        """Let the hosts of these partitions begin anew, under a new epoch. Busy owners notice the reset themselves."""

        def change(found: GroupDocument | None) -> GroupDocument | None:
            if found is None:
                return None
            owned = {
                host: {name: epoch + (name in partitions) for name, epoch in epochs.items()}
                for host, epochs in found.owned.items()
            }
            return msgspec.structs.replace(found, owned=owned)

        group = await SharedDocument(self._store, self._layout.group, GroupDocument).change(change)
        if group is not None:
            await nudge_members(self._store, self._layout, self._nudges, group)


def _only_undoes(tip: ChainEnd, target: Cursor) -> bool:
    """Whether nothing but a reset was committed since the partition was at the target."""
    return bool(tip.resets) and tip.number == tip.resets[-1].number + 1 and target == tip.resets[-1].first


def was_done(resets: Sequence[PartitionReset]) -> bool:
    """Whether a command that was carried out has reset any partition."""
    return any(not found.refusal for found in resets)


def summary(resets: Sequence[PartitionReset]) -> str:
    """The counts of all partitions together, as a sentence."""
    done = [found for found in resets if not found.refusal]
    text = f"repeats {_sum(found.repeats for found in done)} and skips {_sum(found.skips for found in done)}"
    refused = len(resets) - len(done)
    partitions = f"{len(done)} partition{'s' * (len(done) != 1)}"
    return f"{text} records of {partitions}" + (f"; {refused} refused" if refused else "")


def _sum(counts: Iterable[int | None]) -> str:
    known = list(counts)
    total = f"{sum(count or 0 for count in known):,}"
    return f"at least {total}" if None in known else total


def _time_of(reset: Reset) -> float:
    return reset.time
