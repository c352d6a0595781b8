"""Tries the sinks of a processor without leaving rows: connection, rights, tables, columns, latency."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import anyio
import pyarrow as pa

from actorproc.errors import UsageError
from actorproc.output.schema_document import read_schema
from actorproc.output.source_identity import dataset_identity
from actorproc.records import SEQUENCE
from actorproc.rows.output_schema import output_schema
from actorproc.runtime.error_text import format_error
from actorproc.sinks.host_sinks import SinkConfig
from actorproc.sinks.opening import make_sink
from actorproc.sinks.protocol import Sink, SinkRefused, SinkTarget
from actorproc.sinks.row_shape import RowShape
from actorproc.sinks.tables.protocol import TableHome, TableSink
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store

_TIME = 30.0
"""Seconds that a sink may take."""


@dataclass(frozen=True, slots=True)
class TriedSink:
    """The result for one sink."""

    name: str
    url: str
    guarantee: str
    error: str | None = None
    """What is wrong, in one line; None: nothing."""
    refused: bool = False
    """Hosts would refuse to start. Otherwise they start, and deliver once the sink answers."""
    latency_ms: float | None = None
    """Of a delivery without rows, or of a look at the table; None: not tried."""
    note: str = ""
    """What was not tried."""


async def try_sinks(configured: Mapping[str, SinkConfig], store: Store, layout: ProcessorLayout) -> list[TriedSink]:
    """Try all sinks that are configured.

    Raises:
        UsageError: a URL or an option is wrong.
        StoreError: the container does not answer.
    """
    recorded = await read_schema(store, layout)
    schema = None if recorded is None else output_schema(recorded)
    made = {
        name: given
        if isinstance(given, SinkTarget)
        else make_sink(name, given, processor=layout.processor, clock=store.clock)
        for name, given in configured.items()
    }
    home = TableHome(store, layout, await dataset_identity(store, layout) or "")
    return [await _tried(name, sink, schema, home) for name, sink in made.items()]


async def _tried(name: str, sink: SinkTarget, schema: pa.Schema | None, home: TableHome) -> TriedSink:
    def result(error: str | None = None, **fields: object) -> TriedSink:
        return TriedSink(name, sink.url, str(sink.guarantee), error, **fields)  # type: ignore[arg-type]

    if not isinstance(sink, Sink | TableSink):
        return result(note="it cannot be tried")
    note = "" if schema is not None else "columns are not tried, since the processor has never run here"
    try:
        check = _check_of(sink, schema, home)
        with anyio.fail_after(_TIME):
            await check()
            began = home.store.clock.monotonic()
            await check()
            took = (home.store.clock.monotonic() - began) * 1000
    except TimeoutError:
        return result(f"it has not answered within {_TIME:g} s", note=note)
    except (SinkRefused, UsageError) as error:
        return result(_one_line(str(error)), refused=True, note=note)
    except Exception as error:  # noqa: BLE001  # whatever the sink's client raises
        return result(_one_line(format_error(error)), note=note)
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(5), suppress(Exception):
            await sink.close()
    return result(latency_ms=round(took, 1), note=note)


def _check_of(sink: Sink | TableSink, schema: pa.Schema | None, home: TableHome) -> Callable[[], Awaitable[None]]:
    if isinstance(sink, TableSink):
        return partial(sink.check, schema, home)
    return partial(
        sink.check, pa.schema([SEQUENCE]) if schema is None else RowShape(sink.options, schema, sink.can).schema
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())
