"""`python -m tests.routes`: prints the sizes of the rooms, the route of a record, and the start of `serve`."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table

from tests.routes.rooms import GROUPS, rooms


def main() -> None:
    """Print the chosen parts; without arguments, everything."""
    parser = argparse.ArgumentParser(prog="python -m tests.routes", description=__doc__)
    parser.add_argument("--rooms", action="store_true", help="lines and files by room")
    parser.add_argument(
        "--record", action="store_true", help="files and classes between a record's read and its commit"
    )
    parser.add_argument("--serve", action="store_true", help="files and CPU time of `actorproc serve` until it works")
    given = parser.parse_args()
    everything = not (given.rooms or given.record or given.serve)
    console = Console(highlight=False, soft_wrap=True)
    if given.rooms or everything:
        show_rooms(console)
    if given.record or everything:
        show_record(console)
    if given.serve or everything:
        show_serve(console)


def show_rooms(console: Console) -> None:
    found = rooms()
    table = Table(title="Rooms (files of Python, with their comments and empty lines)")
    table.add_column("room")
    table.add_column("files", justify="right")
    table.add_column("lines", justify="right")
    for group in GROUPS:
        members = [room for room in found if room.group == group]
        for room in members:
            table.add_row(f"  {room.name}", f"{room.files}", f"{room.lines:,}")
        files, lines = sum(room.files for room in members), sum(room.lines for room in members)
        table.add_row(group, f"{files}", f"{lines:,}", style="bold", end_section=True)
    table.add_row("all", f"{sum(r.files for r in found)}", f"{sum(r.lines for r in found):,}", style="bold")
    console.print(table)


def show_record(console: Console) -> None:
    from tests.routes.record import record_route

    route = record_route()
    console.print(f"\nA record's route, read to commit: {len(route.files)} files, {len(route.classes)} classes")
    console.print("\nfiles, in order of first entry:")
    _list(console, route.files)
    console.print("\nclasses, in order of first entry:")
    _list(console, route.classes)


def show_serve(console: Console) -> None:
    from tests.routes.serve import serve_start

    start = serve_start()
    console.print(
        f"\nactorproc serve, until its supervisor runs: {len(start.entered)} files entered, "
        f"{len(start.imported)} modules of the package imported ({len(start.modules):,} with those of others), "
        f"{start.cpu:.2f} s of CPU ({start.bare_cpu:.2f} s of these the bare interpreter)"
    )
    console.print("\nfiles entered, in order:")
    _list(console, start.entered)
    entered = {path.removesuffix("/__init__.py").removesuffix(".py").replace("/", ".") for path in start.entered}
    entered = {name if name.startswith("actorproc") else f"actorproc.{name}" for name in entered}
    console.print("\nmodules imported, of which no function ran:")
    _list(console, [name for name in start.imported if name not in entered])


def _list(console: Console, lines: list[str]) -> None:
    for number, line in enumerate(lines, 1):
        console.print(f"{number:4}  {line}")


if __name__ == "__main__":
    main()
