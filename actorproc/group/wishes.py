"""Wishes of operators for the plan: partitions that pause, hosts that run nothing, partitions that belong on a host."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Wishes(msgspec.Struct, frozen=True, omit_defaults=True):
    """Stored in `group.json`, so that every host plans by them. They stay until an operator withdraws them."""

    paused: bool = False
    """The processor is paused: no partition is assigned to a host."""
    paused_partitions: tuple[str, ...] = ()
    drained: tuple[str, ...] = ()
    """Names of hosts that get no partitions."""
    placed: Mapping[str, str] = {}
    """Partition -> the host that runs it while it is alive. The balance leaves these partitions there."""

    def pauses(self, partition: str) -> bool:
        return self.paused or partition in self.paused_partitions


NO_WISHES = Wishes()
