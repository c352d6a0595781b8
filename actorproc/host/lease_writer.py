"""Writes into the group what becomes of leases: handed over, ended, vanished, abandoned, or in need of an epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actorproc.errors import CorruptObject, SourceError, StoreError
from actorproc.group.group import Group
from actorproc.host.owned_partitions import Abandon, OwnedPartitions, RaiseEpoch, Vanished
from actorproc.host.partition_list import PartitionList

HAND_OVER_PAUSE = 0.05
"""Seconds over which drained partitions are gathered at most, so that many are handed over in one write."""

GROUP_UNUSABLE = (StoreError, CorruptObject)
"""The group's document cannot be read or written. A corrupt one does not revoke leases."""


class LeaseWriter:
    """Turns messages about partitions into writes of the group's document.

    A write that fails is logged. The next look at the group repeats it, or the next message of the partition.

    Args:
        look: has the supervisor look at the group, which has changed.
    """

    def __init__(
        self, group: Group, partitions: OwnedPartitions, listed: PartitionList, look: Callable[[], None], log: Any
    ) -> None:
        self._group, self._partitions, self._listed = group, partitions, listed
        self._look, self._logger = look, log

    async def write(self, message: RaiseEpoch | Abandon | Vanished) -> None:
        """Write that an epoch is too low, that another host can run a partition, or that the source has none such."""
        if isinstance(message, RaiseEpoch):  # if this host still has the lease, the group has forgotten its epochs
            partition, epoch = message
            try:
                await self._group.raise_epoch(partition, epoch)
            except GROUP_UNUSABLE as error:
                self._logger.warning(
                    "supervisor.raise_epoch_failed", partition=partition, epoch=epoch, error=str(error)
                )
            self._look()
        elif isinstance(message, Abandon):  # the call that does not end can commit nothing any more
            partition, why = message
            try:
                await self._group.abandon(partition, why)
            except GROUP_UNUSABLE as error:
                self._logger.warning("supervisor.abandon_failed", partition=partition, error=str(error))
            self._look()
        else:
            await self._close_vanished(message.partition)

    async def _close_vanished(self, partition: str) -> None:
        """Close a partition that the source has forgotten. If one follows it, its actor ends it instead."""
        try:
            listed = await self._listed.anew()
            if partition in {*listed, *(parent for parents in listed.values() for parent in parents)}:
                return
            await self._group.close([partition], "vanished")
        except (*GROUP_UNUSABLE, SourceError) as error:
            self._logger.warning("supervisor.close_failed", error=str(error), partitions=1)
            return  # its actor fails again
        self._logger.warning(
            "partition.vanished", partition=partition,
            why="the source does not know it any more; its checkpoint stays, and it goes on there if it comes back",
        )  # fmt: skip
        self._look()

    async def hand_over(self) -> None:
        """Close partitions that have ended. Give the leases of drained ones to their next owners, many in one write."""
        partitions = self._partitions
        if ended := partitions.ended:
            try:
                await self._group.close(ended, "ended")
            except GROUP_UNUSABLE as error:
                self._logger.warning("supervisor.close_failed", error=str(error), partitions=len(ended))
            else:
                partitions.forget(ended, "ended")
                self._listed.expire()
                self._look()  # those that follow them may begin
        if not partitions.released:
            return
        await partitions.drained(HAND_OVER_PAUSE)
        released = partitions.released
        try:
            staying = await self._group.hand_over(released)
        except GROUP_UNUSABLE as error:
            self._logger.warning("supervisor.hand_over_failed", error=str(error), partitions=len(released))
            return
        partitions.forget(partition for partition in released if partition not in staying)
        if staying and not partitions.fenced:
            self._look()  # it starts them again
