"""What reading has cost since a host started: requests, bytes, and charges of the source's own."""

from __future__ import annotations

from collections import Counter

from actorproc.records import ReadCost


class ReadCosts:
    """The sum over all partitions that a host has read."""

    def __init__(self) -> None:
        self.requests = self.bytes = 0
        self.charges: Counter[str] = Counter()
        """By name, such as `request_units`."""

    def add(self, cost: ReadCost) -> None:
        """Add the cost of one read."""
        self.requests += cost.requests
        self.bytes += cost.bytes
        for name, charge in cost.charges.items():
            self.charges[name] += charge  # type: ignore[assignment]  # charges are fractions
