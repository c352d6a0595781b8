"""`actorproc cost`: prints requests and money per month."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from actorproc.admin.cost import PRICES, PRICES_FROM, Load, cost_document, requests
from actorproc.cli.common import load_settings, run_async
from actorproc.cli.terminal import print_json, print_line, print_table, rows_of


def run(load: Load, as_json: bool, config: Path | None, given: Sequence[str] | None) -> None:
    """Print a table, or one JSON object."""
    found = requests(load, load_settings(config, given))
    total = sum(each.per_month for each in found)
    dollars = {price.store: sum(each.dollars(price) for each in found) for price in PRICES}
    if as_json:
        print_json(cost_document(found))
        return
    rows = [
        [each.purpose, each.verb, f"{each.per_month:13,.0f}", *(f"{each.dollars(price):10,.2f}" for price in PRICES)]
        for each in found
    ]
    rows.append(["all", "", f"{total:13,.0f}", *(f"{amount:10,.2f}" for amount in dollars.values())])
    columns = ["requests", "verb", "per month", *(f"$ {price.store}" for price in PRICES)]
    run_async(lambda: print_table(columns, rows_of(rows)))
    print_line(f"{PRICES_FROM}, without storage")
