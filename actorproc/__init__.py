"""actorproc: a partition processor. Leases in a bucket, one actor per partition, output exactly once."""

from __future__ import annotations
