"""The example with spans, with the SDK of OpenTelemetry: batches link to producers, and commits to their batches."""

from __future__ import annotations

import anyio
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from actorproc import PartitionInfo, Processor
from actorproc.testing.memory_source import MemorySource
from examples.tracing import TracedDelays
from tests.processor.doubling import QUICK

GOOD = b'{"carrier": "UA", "dep_delay": 4}'
PRODUCERS = [f"00-{n:032x}-{n:016x}-01" for n in (1, 2)]


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace.get_tracer", provider.get_tracer)
    return exporter


async def spans_of(source: MemorySource, exported: InMemorySpanExporter) -> dict[str, list[ReadableSpan]]:
    """By the first word of their names."""
    with anyio.fail_after(60):
        await Processor(
            TracedDelays, source=source, container="memory://tracing-" + str(id(source)), **QUICK, dead_letter_limit=1
        ).run(until_end=True)
    found: dict[str, list[ReadableSpan]] = {}
    for span in exported.get_finished_spans():
        found.setdefault(span.name.partition(" ")[0], []).append(span)
    return found


async def test_a_batch_links_to_its_producers_and_a_commit_to_its_batches(exported: InMemorySpanExporter) -> None:
    source = MemorySource(1)
    first, second = (("traceparent", producer.encode()) for producer in PRODUCERS)
    for headers in ([first], [first], [second, ("other", b"x")], [("traceparent", b"\xff nonsense")], []):
        source.append("0", [GOOD], headers=headers)
    found = await spans_of(source, exported)
    (batch,), (commit,) = found["process"], found["commit"]
    assert [f"00-{link.context.trace_id:032x}-{link.context.span_id:016x}-01" for link in batch.links] == PRODUCERS
    assert (batch.name, batch.kind) == ("process TracedDelays", SpanKind.CONSUMER)
    assert batch.attributes is not None
    assert batch.attributes["messaging.batch.message_count"] == 5
    assert [link.context for link in commit.links] == [batch.get_span_context()]
    assert commit.attributes is not None
    assert (commit.attributes["actorproc.rows"], commit.attributes["actorproc.upto"]) == (5, 4)
    assert commit.start_time is not None
    assert batch.start_time is not None
    assert commit.start_time <= batch.start_time
    assert commit.end_time is not None
    assert batch.end_time is not None
    assert commit.end_time >= batch.end_time


async def test_each_failed_attempt_is_a_span_with_its_error(exported: InMemorySpanExporter) -> None:
    source = MemorySource(1)
    source.append("0", [b"{}"])
    found = await spans_of(source, exported)
    assert len(found["process"]) > 1
    assert {span.status.status_code for span in found["process"]} == {StatusCode.ERROR}
    assert all(span.events[0].attributes["exception.type"] == "KeyError" for span in found["process"])  # type: ignore[index]
    assert found["commit"][-1].status.status_code is StatusCode.UNSET


async def test_a_failed_commit_is_a_span_with_its_error(exported: InMemorySpanExporter) -> None:
    handler = TracedDelays()
    await handler.committed(PartitionInfo("p", "h", "0", 1), 7, 0, ConnectionError("no store"))
    (span,) = exported.get_finished_spans()
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "no store")
    assert span.links == ()
