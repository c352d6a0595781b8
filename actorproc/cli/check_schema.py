"""`actorproc schema check`: whether a handler goes with the stored output and state."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import typer

from actorproc.admin.schema_findings import SchemaFinding, check_schemas
from actorproc.cli.common import opened_processor, pairs, run_async
from actorproc.cli.exit_codes import FAILED
from actorproc.cli.loading import load_handler
from actorproc.cli.terminal import print_json, print_line
from actorproc.codecs import open_decoder, subject_of
from actorproc.config.settings import Settings
from actorproc.handler.checks import checked_handler
from actorproc.handler.options import load_options
from actorproc.handler.state_kinds import state_types
from actorproc.rows.output_schema import parse_schema


def check(
    handler: str,
    name: str,
    container: str,
    options: Sequence[str],
    as_json: bool,
    config: Path | None,
    given: Sequence[str] | None,
) -> None:
    """Print a line for the output and for each state."""
    loaded = checked_handler(load_handler(handler))
    filled = load_options(loaded, pairs("--option", options), config)

    async def work() -> list[SchemaFinding]:
        async with opened_processor(name, container, config, given) as (store, layout, settings):
            schema = await _declared_schema(loaded.schema_for(filled), settings)
            return await check_schemas(store, layout, schema, state_types(loaded))

    findings = run_async(work)
    for found in findings:
        if as_json:
            print_json(found._asdict())
        else:
            print_line(f"{found.subject}: {'' if found.fits else 'DOES NOT FIT: '}{found.text}")
    if not all(found.fits for found in findings):
        raise typer.Exit(FAILED)


async def _declared_schema(declared: str | pa.Schema | type | None, settings: Settings) -> pa.Schema:
    if (subject := subject_of(declared)) is not None:
        declared = await open_decoder(settings).output_schema(subject)
    return parse_schema(declared)
