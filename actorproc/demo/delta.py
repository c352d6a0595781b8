"""Sums up the Delta table with Polars: the same output, without Spark."""

from __future__ import annotations

from pathlib import Path

from actorproc.demo.check import Answer
from actorproc.demo.data import CarrierDelay


def ask_polars(output: Path, airlines: Path) -> tuple[Answer, int]:
    """The summary of the table, and its version.

    Args:
        output: the processor's output folder, which is the table.
        airlines: CSV with a header `carrier,name`.
    """
    import polars as pl
    from deltalake import DeltaTable

    table = DeltaTable(str(output))
    rows = pl.scan_delta(table)
    minutes = pl.col("minutes")
    delays = rows.group_by("carrier").agg(flights=minutes.count(), mean=minutes.mean())
    carriers = delays.join(pl.scan_csv(airlines), on="carrier", how="left").sort("carrier").collect()
    repeated = rows.group_by("partition", "_sequence").len().filter(pl.col("len") > 1)
    count, more = (frame.select(pl.len()).collect().item() for frame in (rows, repeated))
    lines = [CarrierDelay(**line) for line in carriers.select("carrier", "name", "flights", "mean").to_dicts()]
    return Answer(count, more, lines), table.version()
