"""`actorproc output`: shows committed rows."""

from __future__ import annotations

from actorproc.admin.read_output import output_rows
from actorproc.cli.common import OpenedProcessor, chosen_partitions, run_async
from actorproc.cli.streams import warn
from actorproc.cli.terminal import print_json, print_table
from actorproc.errors import UsageError

DEFAULT_LIMIT = 20  # rows of a table


def run(
    opened: OpenedProcessor,
    limit: int | None,
    all_rows: bool,
    partition: str | None,
    as_json: bool,
) -> None:
    """Print the rows: as a table the newest ones, as JSON all, unless told otherwise."""
    if all_rows and limit is not None:
        raise UsageError("--limit and --all: choose one")
    default = None if as_json or all_rows else DEFAULT_LIMIT
    most = default if limit is None else limit

    async def work() -> None:
        async with opened as (store, layout, _):
            partitions = await chosen_partitions(store, layout, partition)
            columns, rows = await output_rows(store, layout, partitions, most)
            if as_json:
                async for row in rows:
                    print_json(row)
                return
            cells = ([row[column] for column in columns] async for row in rows)
            count = await print_table(columns, cells, empty="no rows", cut=columns[2:])
        if count == default:
            warn(f"these are the {count} newest rows (--limit N, --all)")

    run_async(work)
