"""Spans of OpenTelemetry for the batches and commits of a handler. Needs opentelemetry-sdk and an exporter.

    pip install . opentelemetry-distro opentelemetry-exporter-otlp    # from a checkout of actorproc
    OTEL_SERVICE_NAME=delays opentelemetry-instrument actorproc serve examples.tracing:TracedDelays \\
        --source events --container state

A span of a batch has a link to the span of each producer whose record has a header `traceparent`. A span of a commit
begins with its first batch and has links to its batches: so it lasts from the first record to the durable rows.
"""

from __future__ import annotations

from time import time_ns

from opentelemetry import trace
from opentelemetry.trace import Link, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from actorproc import Batch, PartitionContext, PartitionHandler, PartitionInfo

MOST_LINKS = 128  # of a span: the default limit of the SDK


class Traced(PartitionHandler):
    """Put it before a handler whose `process` is `async def`: `class TracedDelays(Traced, Delays)`."""

    _batches: tuple[Link, ...] = ()  # since the latest commit
    _began: int | None = None  # nanoseconds since 1970

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        self._began = self._began or time_ns()
        tracer, facts = trace.get_tracer("actorproc"), {**_facts(ctx), "messaging.batch.message_count": len(batch)}
        with tracer.start_as_current_span(
            f"process {ctx.processor}", kind=SpanKind.CONSUMER, links=_producers(batch), attributes=facts
        ) as span:  # an exception, which fails the attempt, is recorded
            self._batches = (*self._batches, Link(span.get_span_context()))[-MOST_LINKS:]
            if (work := super().process(batch, ctx)) is not None:
                await work

    async def committed(self, ctx: PartitionInfo, upto: int, rows: int, error: Exception | None) -> None:
        span = trace.get_tracer("actorproc").start_span(
            f"commit {ctx.processor}", links=self._batches, start_time=self._began,
            attributes={**_facts(ctx), "actorproc.upto": upto, "actorproc.rows": rows},
        )  # fmt: skip
        if error is not None:
            span.record_exception(error)
            span.set_status(Status(StatusCode.ERROR, str(error)))
        span.end()
        self._batches, self._began = (), None
        await super().committed(ctx, upto, rows, error)


def _facts(ctx: PartitionInfo) -> dict[str, str | int]:
    return {
        "messaging.system": "actorproc", "messaging.consumer.group.name": ctx.processor,
        "messaging.client.id": ctx.host, "messaging.destination.partition.id": ctx.partition,
        "actorproc.epoch": ctx.epoch,
    }  # fmt: skip


def _producers(batch: Batch) -> list[Link]:
    """The spans that the records name, each once."""
    carriers = {}
    for headers in batch.headers:
        found = {
            name: (value or b"").decode("latin-1") for name, value in headers if name in ("traceparent", "tracestate")
        }
        if "traceparent" in found:
            carriers[found["traceparent"]] = found
    contexts = [TraceContextTextMapPropagator().extract(carrier) for carrier in list(carriers.values())[:MOST_LINKS]]
    spans = [trace.get_current_span(context).get_span_context() for context in contexts]
    return [Link(span) for span in spans if span.is_valid]


class Delays(PartitionHandler):
    """The first handler of the README."""

    output_schema = "carrier string, minutes double"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            flight = record.json()
            ctx.emit(record, {"carrier": flight["carrier"], "minutes": flight["dep_delay"]})


class TracedDelays(Traced, Delays):
    """`Delays` with spans."""
