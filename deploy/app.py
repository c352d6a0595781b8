"""The handler of the examples in this folder. Replace it by yours."""

from __future__ import annotations

from actorproc import PartitionContext, Record, RecordHandler


class Delays(RecordHandler[Record]):
    """A row for each flight: {"carrier": "UA", "dep_delay": 12.0}."""

    output_schema = "carrier string, minutes double"

    def process_record(self, record: Record, ctx: PartitionContext) -> dict[str, object]:
        flight = record.json()
        return {"carrier": flight["carrier"], "minutes": flight["dep_delay"]}
