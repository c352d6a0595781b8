"""`actorproc verify`: prints the missing and altered objects of a container and a log."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import typer

from actorproc.admin.audit import record_now
from actorproc.admin.damage import Damage, Verification
from actorproc.admin.verify import repair, verify
from actorproc.cli.common import OpenedProcessor, run_async, settings_of_log
from actorproc.cli.terminal import counted, print_json, print_line, print_table, rows_of
from actorproc.stores import open_store

_COLUMNS = ["object", "damage", "what to do"]
_AUDITED = 5  # objects that the audit names


def run(
    opened: OpenedProcessor, log: str | None, options: Sequence[str] | None, do_repair: bool, as_json: bool
) -> None:
    """Print the damages; exit code 1 if some are left."""

    async def work() -> tuple[Verification, list[Damage]]:
        async with AsyncExitStack() as stack:
            store, layout, settings = await stack.enter_async_context(opened)
            own = settings_of_log(log, settings, options)
            source = None if log is None else await stack.enter_async_context(open_store(log, own))
            result = await verify(store, layout, source, settings.sinks)
            left = await repair(result) if do_repair else result.damages
            if repaired := [damage.key for damage in result.damages if damage not in left]:
                effect = f"repaired: {', '.join(repaired[:_AUDITED])}" + " and more" * (len(repaired) > _AUDITED)
                await record_now(store, layout.audit, "repair", {}, effect)
            if as_json:
                print_json(_document(result, left))
            else:
                await _print(result, left)
            return result, left

    _, left = run_async(work)
    if left:
        raise typer.Exit(1)


def _document(result: Verification, left: list[Damage]) -> dict[str, Any]:
    return {
        "checked": dict(result.checked),
        "damages": [
            {
                "object": damage.key,
                "damage": damage.what,
                "what_to_do": damage.remedy,
                "repairable": damage.repair is not None,
                "repaired": damage not in left,
            }
            for damage in result.damages
        ],
    }


async def _print(result: Verification, left: list[Damage]) -> None:
    rows = [(damage.key, damage.what, damage.remedy if damage in left else "repaired") for damage in result.damages]
    if rows:
        await print_table(_COLUMNS, rows_of(rows))
    checked = ", ".join(_counted(count, *kind.partition(" ")) for kind, count in result.checked.items() if count)
    print_line(f"checked {checked or 'nothing'}: {_verdict(result, left)}")


def _counted(count: int, noun: str, *rest: str) -> str:
    """`1 file of dead letters` for the kind `files of dead letters`."""
    return counted(count, noun.removesuffix("s")) + "".join(rest)


def _verdict(result: Verification, left: list[Damage]) -> str:
    if not result.damages:
        return "nothing is missing or altered"
    repaired = len(result.damages) - len(left)
    return f"{counted(len(result.damages), 'damage')}, {repaired:,} repaired"
