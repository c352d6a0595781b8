"""Wishes for the plan: partitions that pause, hosts that run nothing, partitions that belong on a host, weights."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import force_setattr

HEAVIEST = 1_000
"""Weight of a partition at most; the least is 1."""


class Wishes(msgspec.Struct, frozen=True, omit_defaults=True):
    """Stored in `group.json`, so that every host plans by them. They stay until an operator withdraws them."""

    paused: bool = False
    """The processor is paused: no partition is assigned to a host."""
    paused_partitions: tuple[str, ...] = ()
    drained: tuple[str, ...] = ()
    """Names of hosts that get no partitions."""
    placed: Mapping[str, str] = {}
    """Partition -> the host that runs it while it is alive. The balance leaves these partitions there."""

    weights: Mapping[str, int] = {}
    """Partition -> its load in comparison with others, with `balance = "load"`. Without any, counts are even.

    No wish of an operator: the hosts measure it. It is here so that every host plans by it."""

    reasons: Mapping[str, str] = {}
    """Why, in the operators' words: of `pause`, `pause PARTITION`, `drain HOST`, `move PARTITION`."""

    def __post_init__(self) -> None:
        """Bound the weights, of which a stored document may hold any: planning relies on it."""
        if not all(1 <= weight <= HEAVIEST for weight in self.weights.values()):
            bounded = {partition: max(1, min(HEAVIEST, weight)) for partition, weight in self.weights.items()}
            force_setattr(self, "weights", bounded)

    def pauses(self, partition: str) -> bool:
        return self.paused or partition in self.paused_partitions

    def why_paused(self, partition: str) -> str:
        """The reason of a pause, as ` (...)`; "" if none was given."""
        return self.because(f"pause {partition}") or self.because("pause")

    def because(self, act: str) -> str:
        """The reason of an act, as ` (...)`; "" if none was given."""
        return f" ({self.reasons[act]})" if act in self.reasons else ""

    def acts(self) -> set[str]:
        """The acts that hold, by which `reasons` are known."""
        pauses = {"pause"} if self.paused else {f"pause {partition}" for partition in self.paused_partitions}
        drains, moves = {f"drain {host}" for host in self.drained}, {f"move {partition}" for partition in self.placed}
        return pauses | drains | moves


NO_WISHES = Wishes()
