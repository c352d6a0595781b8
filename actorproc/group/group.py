"""One host's part in its group: heartbeats, and a document of members and leases that each host changes by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import anyio

from actorproc.config.settings import Settings
from actorproc.errors import Fenced, RemovedFromGroup, VersionRefused
from actorproc.group.assignment import Closed, Lease, Member, Move, Plan, abandon, begins, closed, plan, reweighted
from actorproc.group.format_versions import FORMAT_VERSIONS, FormatVersions
from actorproc.group.heartbeat import TRUST, HeartbeatWriter, Incarnation
from actorproc.group.known_group import KnownGroup
from actorproc.group.liveness import LivenessTracker
from actorproc.group.load_watch import LoadWatch
from actorproc.group.membership import GroupDocument
from actorproc.group.other_hosts import OtherHosts
from actorproc.group.reports import HostReport
from actorproc.group.wishes import NO_WISHES, Wishes
from actorproc.runtime.backoff import Backoff
from actorproc.runtime.clock import SYSTEM, Clock
from actorproc.runtime.logger import get_logger
from actorproc.runtime.nudge import Nudges
from actorproc.storage.document import SharedDocument
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Conflict, Store

logger = get_logger(__name__)

_CONFLICT_BACKOFF = Backoff(0.05, 2.0)  # between two attempts to write the document
_STALE_PER_LOOK = 10  # orphaned heartbeats removed per look
_REASONS_LOGGED = 5  # the most frequent reasons for moves that a log line names


Listed = Callable[[float], Awaitable[Mapping[str, Collection[str]]]]
"""Gives the partitions of the source, name -> parents, as they were listed at this time of the clock or later. Without
any if they cannot be listed now."""


@dataclass(frozen=True, slots=True)
class GroupView:
    """The group after a look."""

    mine: Mapping[str, Lease]
    """Leases of this host, by partition. A lease with a `next` must be drained and handed over."""
    members: Mapping[str, Member]
    leases: Mapping[str, Lease]
    moves: Sequence[Move]
    """The changes that this look has written."""
    look_again_in: float | None
    """Seconds; None: the usual interval will do."""
    wishes: Wishes = NO_WISHES
    """The wishes of operators."""


class Group:
    """One host's part in the group of a processor.

    An idle group costs a PUT for each `renew`, and a LIST and a GET (not modified) for each `look`, whatever the number
    of partitions. Every look decides for all hosts from the stored state only, so it depends on no message.
    `look`, `hand_over` and `leave` may overlap; they wait for one another.

    Args:
        host: name of this host, which no other host may have.
        nudges: may be opened later: its address is read at each `renew`.
        format_versions: the format versions that this host understands.
    """

    def __init__(
        self,
        store: Store,
        layout: ProcessorLayout,
        host: str,
        settings: Settings,
        *,
        clock: Clock = SYSTEM,
        nudges: Nudges | None = None,
        format_versions: FormatVersions = FORMAT_VERSIONS,
    ) -> None:
        self.host = host
        self._store = store
        self._layout = layout
        self._settings = settings
        self._clock = clock
        self._format_versions = format_versions
        self._nudges = nudges or Nudges()
        self._logger = logger.bind(processor=layout.processor, host=host)
        self._others = OtherHosts(store, layout, self._nudges, self._logger)
        self._lock = anyio.Lock()
        self._watch = LivenessTracker(settings.lease_expiration_interval)
        self._heartbeat = HeartbeatWriter(store, layout, host, settings, clock, format_versions)
        self._joined = False  # whether this incarnation has been a member
        self._was_in = False  # whether this or an earlier incarnation has been one
        self._retiring = False
        self._given_away: dict[str, Move] = {}  # by partition, while this host stops: logged when it leaves
        self._left = False

        self._stored = SharedDocument(store, layout.group, GroupDocument)
        self._known = KnownGroup(host, self._heartbeat, settings, clock)
        self._settled_for: object = None  # circumstances under which there was nothing to change
        self._rebalance_awaited = False
        self._loads = LoadWatch(store, layout, clock) if settings.balance == "load" else None

    # Heartbeat

    @property
    def incarnation(self) -> str:
        """Id of this life of the host; it changes with each start and each `rejoin`."""
        return self._heartbeat.incarnation

    async def renew(self, report: HostReport | None = None) -> None:
        """Write the heartbeat, which renews every lease of this host.

        Raises:
            StoreUnavailable: not written within the renew interval; due again at once.
        """
        await self._heartbeat.renew(self._nudges.address, report or HostReport())

    async def say(self, store: Store, report: HostReport) -> None:
        """Write a heartbeat through another store, from any thread. It does not extend this host's own trust."""
        await self._heartbeat.say(store, self._nudges.address, report)

    def valid_until(self) -> float:
        """Until when, on `clock.monotonic`, no host may consider this one dead."""
        return self._heartbeat.valid_until

    def fenced(self) -> bool:
        """Whether other hosts may consider this one dead. Until it has renewed, it must run nothing."""
        return self._clock.monotonic() >= self._heartbeat.valid_until

    # The cycle

    async def look(self, listed: Listed) -> GroupView:
        """Read heartbeats, members and leases, and write one plan for all hosts if it changes anything.

        Args:
            listed: lists the partitions of the source; new ones are added to the group.

        Raises:
            Fenced: another host with this name has joined later. This host must stop for good.
            VersionRefused: the other members run a version incompatible with this one. This host must stop, too.
            RemovedFromGroup: the other hosts considered this one dead. Stop its partitions, then call `rejoin`.
            CorruptObject: `group.json` is corrupt.
            StoreError: the store failed. It is unknown whether the group has changed; the next look starts over.
        """
        async with self._lock:
            attempt = 0
            while True:
                asked = self._clock.monotonic()
                await self._refresh()
                refreshed = self._clock.monotonic()
                await self._observe()
                if self._clock.monotonic() - asked > TRUST * self._settings.lease_expiration_interval:
                    continue  # this host was paused meanwhile: the replies may be outdated
                self._check_membership()
                await self._check_formats()
                wanted = await listed(-inf)
                if begins(wanted, self._known.document.leases):
                    wanted = await listed(refreshed)
                proposal, circumstances = self._propose(wanted, asked)
                if proposal is None or not proposal.changed:
                    break
                attempt += 1
                if await self._write(proposal, attempt):
                    break
            if proposal is not None:
                self._rebalance_awaited = self._known.awaits_rebalance(wanted)
                self._settled_for = None if proposal.changed else circumstances
            if proposal is None or not proposal.changed:
                await self._remove_stale_heartbeats()
                await self._weigh()
            moves = proposal.moves if proposal is not None else []
            pause = None
            if self._rebalance_awaited:
                pause = self._known.rebalance_in + 0.05 * self._settings.rebalance_delay * self._clock.random.random()
            known = self._known.document
            return GroupView(self._known.own, known.members, known.leases, moves, pause, known.wishes)

    async def hand_over(self, partitions: Collection[str]) -> Collection[str]:
        """Give drained partitions to their next owners in one write, and nudge these hosts.

        Returns the partitions that stay, because their moves were called off. After `retire`, leases without a next
        owner go to the host that has fewest, or to none if there is no other host.

        Raises:
            StoreError: the store failed; the leases may or may not have changed hands.
        """

        def propose() -> Plan | None:
            ready = {
                partition: f"{self.host} handed it over" for partition in partitions if partition in self._known.own
            }
            return plan(*self._known.state, leaving=self._leaving(), ready=ready, may_move=False) if ready else None

        async with self._lock:
            await self._change(propose)
            return self._known.own.keys() & partitions

    async def close(self, partitions: Collection[str], why: Closed) -> None:
        """Close own leases: nobody runs these partitions any more.

        Args:
            why: `ended` only once their checkpoints say so.

        Raises:
            StoreError: the store failed.
        """

        def propose() -> Plan | None:
            mine = sorted(self._known.own.keys() & set(partitions))
            members, leases, wishes = self._known.state
            moves = [Move(partition, self.host, None, f"it has {why}") for partition in mine]
            return Plan(dict(members), closed(leases, mine, why), moves, True, wishes) if mine else None

        async with self._lock:
            await self._change(propose)

    async def raise_epoch(self, partition: str, epoch: int) -> None:
        """Raise the epoch of an own lease beyond `epoch`, that of its checkpoint. Without this lease, do nothing.

        If `group.json` was lost while all hosts were down, its epochs start over, and no host could claim a checkpoint.

        Raises:
            StoreError: the store failed.
        """

        def propose() -> Plan | None:
            lease = self._known.own.get(partition)
            if lease is None or lease.epoch > epoch:
                return None
            members, leases, wishes = self._known.state
            move = Move(partition, self.host, self.host, f"its checkpoint bears epoch {epoch}: group.json was lost")
            return Plan(dict(members), {**leases, partition: lease._replace(epoch=epoch + 1)}, [move], True, wishes)

        async with self._lock:
            await self._change(propose)

    async def abandon(self, partition: str, reason: str) -> None:
        """Give an own lease to another host at once, without draining it. Nothing if it is not ours, or we are alone.

        Raises:
            StoreError: the store failed.
        """

        def propose() -> Plan | None:
            return abandon(*self._known.state, partition, reason) if partition in self._known.own else None

        async with self._lock:
            await self._change(propose)

    def retire(self) -> None:
        """Give up all leases: the next look marks them for other hosts; then they are drained and handed over."""
        self._retiring = True

    async def leave(self) -> None:
        """Remove this host from the group. Its remaining leases go to the other hosts. Call nothing else after it.

        Raises:
            StoreError: the store failed; the remaining leases expire.
        """

        def propose() -> Plan | None:
            if self._known.is_in:
                return plan(*self._known.state, gone={self.host: f"{self.host} left"}, may_move=False)
            if self._joined or (self.host, self.incarnation) in self._known.document.out:
                return None
            members, leases, wishes = self._known.state
            # A host that has seen the heartbeat may be about to add this one to the group.
            return Plan(dict(members), dict(leases), [], True, wishes)

        self._heartbeat.end()
        self._left = True
        async with self._lock:
            # Before the change, so that no host finds the heartbeat of a former member.
            await self._others.remove_heartbeats([(self.host, self.incarnation), *self._own_past_heartbeats()])
            await self._change(propose)

    def rejoin(self) -> None:
        """After RemovedFromGroup: become a new incarnation, which joins with its first `renew` and `look`."""
        self._heartbeat.restart()
        self._joined = False

    # Reading

    async def _refresh(self) -> None:
        before = self._stored.current
        stored = await self._stored.read()
        if stored is before:
            return
        if stored is not None:
            self._adopt(stored)
            return
        # Deleted under a running group: all join anew, and epochs must not start over.
        leases = {
            partition: Lease(None, lease.epoch, closed=lease.closed)
            for partition, lease in self._known.document.leases.items()
        }
        self._adopt(
            self._known.document.followed_by({}, leases, self._known.document.wishes, listed=self._watch.listed)
        )

    async def _observe(self) -> None:
        asked = self._clock.monotonic()
        listing = await self._store.list(self._layout.hosts)
        self._watch.observe(listing, self._known.document.incarnations(), asked=asked, answered=self._clock.monotonic())

    def _adopt(self, document: GroupDocument) -> None:
        self._settled_for = None
        if self._known.adopt(document):
            self._others.forget_all_but(document.incarnations())

    def _check_membership(self) -> None:
        member = self._known.document.members.get(self.host)
        if member is None:
            if self._joined or (self.host, self.incarnation) in self._known.document.out:
                raise RemovedFromGroup(f"{self._layout.group}: other hosts considered host {self.host} dead")
        elif member.incarnation == self.incarnation:
            self._joined = self._was_in = True
        elif self._was_in and member.incarnation not in self._heartbeat.past:
            raise Fenced(
                f"{self._layout.group}: another host named {self.host!r} has joined and replaced this one, which "
                "stops; its partitions go on there. If this one is started again, it replaces the other in turn, and "
                "so on: give each process a host name of its own, or none (the default is the machine's name and the "
                "process id)"
            )

    async def _check_formats(self) -> None:
        """Stop if this host cannot read the group's format, or other members cannot read this host's."""
        members, gone = self._known.document.members, self._gone()
        others = {host: member.incarnation for host, member in members.items() if host not in (self.host, *gone)}
        if why := self._format_versions.refusal(self._known.document.writes, others):
            self._heartbeat.end()
            await self._others.remove_heartbeats([(self.host, self.incarnation), *self._own_past_heartbeats()])
            raise VersionRefused(f"{self._layout.group}: {why}")

    def _gone(self) -> dict[str, str]:
        """Other members that are dead, and why."""
        return {
            host: why
            for host, member in self._known.document.members.items()
            if host != self.host and (why := self._watch.why_dead((host, member.incarnation)))
        }

    def _leaving(self) -> list[str]:
        return [self.host] if self._retiring and self._known.is_in else []

    # Deciding

    def _propose(self, partitions: Mapping[str, Collection[str]], asked: float) -> tuple[Plan | None, object]:
        """The plan, and the circumstances that it was made for. No plan if they required no change before."""
        members = self._known.document.members
        gone = self._gone()
        joining = self._known.document.may_join(self._watch.joining(members))
        joining.pop(self.host, None)
        if not (self._known.is_in or self._retiring or self.fenced()):
            joining[self.host] = self.incarnation  # only the newer incarnation replaces an older one of its name
        ready = self._known.late_handovers(asked)
        may_move = not gone and not joining and not self._known.rebalance_in
        leaving = self._leaving()
        circumstances = (
            dict(partitions),
            frozenset(gone),
            tuple(sorted(joining.items())),
            leaving,
            frozenset(ready),
            may_move,
        )
        if circumstances == self._settled_for:
            return None, circumstances
        proposal = plan(
            *self._known.state,
            partitions=partitions,
            joining=joining,
            leaving=leaving,
            gone=gone,
            ready=ready,
            may_move=may_move,
        )
        return proposal, circumstances

    async def _weigh(self) -> None:
        """Plan by new weights, if they even the hosts out. The first host by name measures, while nothing moves."""
        document = self._known.document
        first = self.host == min(document.members, default=None)
        if not first or not self._known.is_in or document.next_owners or self._known.rebalance_in:
            return
        weights = await self._loads.new_weights(document) if self._loads else {} if document.wishes.weights else None
        if weights is None:
            return

        def propose() -> Plan | None:
            members, leases, wishes = self._known.state
            return None if wishes.weights == weights else reweighted(members, leases, wishes, weights)

        await self._change(propose)

    # Changing

    async def _change(self, propose: Callable[[], Plan | None]) -> None:
        """Write the plan of `propose`. Start over each time that another host was first."""
        attempt = 0
        while (proposal := propose()) is not None and proposal.changed:
            attempt += 1
            if await self._write(proposal, attempt):
                return
            await self._refresh()

    async def _write(self, proposal: Plan, attempt: int) -> bool:
        """Swap the document, then nudge the hosts concerned. False, after a pause: another host was first."""
        before = self._known.document
        left = [(self.host, self.incarnation)] if self._left else []
        successor = before.followed_by(
            proposal.members, proposal.leases, proposal.wishes, listed=self._watch.listed, left=left
        )
        try:
            document = await self._stored.swap(successor)
        except Conflict:
            await self._clock.sleep(_CONFLICT_BACKOFF.delay(attempt, self._clock.random))
            return False
        self._adopt(document)
        if self._known.is_in:
            self._joined = self._was_in = True
        was, now, own = before.incarnations(), document.incarnations(), (self.host, self.incarnation)
        joined, out = sorted(now - was), sorted(was - now)
        self._log_written(joined, out, proposal.moves)
        for move in proposal.moves:
            self._logger.debug("group.move", **move._asdict(), epoch=proposal.leases[move.partition].epoch)
        concerned = {host for move in proposal.moves for host in (move.source, move.target)}
        await self._others.nudge(
            [who for who in sorted(now) if who[0] in concerned and who != own], [who for who in out if who != own]
        )
        return True

    def _log_written(self, joined: Sequence[Incarnation], out: Sequence[Incarnation], moves: Sequence[Move]) -> None:
        """One line, or one for a whole stop: partitions are handed over as they are drained, one after the other."""
        if self._retiring:
            self._given_away |= {move.partition: move for move in moves}
            moves = list(self._given_away.values()) if self._left else moves
        why = dict(Counter(move.reason for move in moves).most_common(_REASONS_LOGGED))
        if self._retiring and not self._left and not joined and not out:
            self._logger.debug("group.written", moves=len(moves), why=why)
        else:
            self._logger.info("group.written", joined=joined, out=out, moves=len(moves), why=why)

    async def _remove_stale_heartbeats(self) -> None:
        """Remove those of this host's earlier incarnations. The first host by name also removes orphaned ones."""
        stale = self._own_past_heartbeats()
        if self.host == min(self._known.document.members, default=None):
            stale += self._watch.orphaned(self._known.document.incarnations())[:_STALE_PER_LOOK]
        await self._others.remove_heartbeats(stale)

    def _own_past_heartbeats(self) -> list[Incarnation]:
        """This host's earlier incarnations in this process whose heartbeats are still there."""
        return [(self.host, past) for past in sorted(self._heartbeat.past) if (self.host, past) in self._watch.listed]
