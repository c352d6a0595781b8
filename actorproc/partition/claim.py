"""Claims a partition: writes the epoch into its checkpoint, and walks the chain of commits from there to its end.

The commit protocol: docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from actorproc.output.chain import ChainEnd, OutputChain
from actorproc.output.checkpoint import Checkpoint, CheckpointKeeper
from actorproc.records import Cursor
from actorproc.state.partition_state import MissingState, PartitionState


@dataclass(slots=True)
class Claimed:
    """The end of the chain, as the walk has found it."""

    end: ChainEnd
    time: float
    """Of the latest commit; 0: there is none."""
    identities: tuple[str, ...]
    """Of a queue: names of the latest committed messages."""
    last_commit: float | None = None
    """Time of the last commit that the walk has read."""


async def claim(
    keeper: CheckpointKeeper, chain: OutputChain, state: PartitionState, first: Callable[[], Awaitable[Checkpoint]]
) -> Claimed:
    """Claim the checkpoint, walk the chain, and restore the keyed state.

    Args:
        first: asked for the first checkpoint, if there is none yet.

    Raises:
        Fenced: another host runs this partition.
        CorruptObject: commits are missing.
    """
    boundary = 0
    while True:
        checkpoint = await keeper.claim(first)
        chain.check_not_below(boundary, checkpoint.number)
        try:
            await state.load(checkpoint.state, checkpoint.stream_time)
            found, walked = await _walk(chain, state, checkpoint)
        except MissingState as missing:  # another owner has gone on and swept it, or somebody deleted it
            await keeper.check()
            raise missing.corrupt() from None
        boundary = await chain.boundary()
        if boundary <= checkpoint.number:
            break
        # The checkpoint was outdated: the walk may have met a file that was created too late, below the boundary.
    if walked and (gap := await chain.gap(found.end.number)) is not None:
        raise gap  # later commits exist: to fill the gap could repeat their rows
    state.restored(found.time)
    return found


async def _walk(chain: OutputChain, state: PartitionState, checkpoint: Checkpoint) -> tuple[Claimed, bool]:
    """Read the commits from the checkpoint to the end of the chain; False if the partition is new."""
    found = Claimed(ChainEnd.at(checkpoint), checkpoint.time, checkpoint.identities)
    previous, new = Cursor(""), not checkpoint.time  # new: never moved, or an earlier checkpoint was deleted
    walked: dict[str, int] = {}
    walking = not new or await chain.begun()
    while walking and (commit := await chain.read(found.end.number)) is not None:
        number, cursor = found.end.number, found.end.cursor
        if walked or commit.first.sequence < cursor.sequence:
            await chain.check_is_no_copy(number, commit, walked)
        chain.check_follows(number, commit, previous, None if new else cursor)
        previous = commit.next
        walked[commit.put_id] = number
        if commit.letters_size:
            await chain.publish(number, await chain.letters(number))
        await state.follow(number, commit)
        found.end = found.end.after(commit)
        found.time, found.last_commit = max(found.time, commit.time), commit.time
        if found.end.cursor == commit.next:
            found.identities = commit.identities or found.identities
    return found, walking
