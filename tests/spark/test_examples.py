"""The examples on real departures, compared with the CSV's own columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.csv as csv
import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from actorproc.demo.data import data_file, load_departures
from actorproc.spark import stream_output
from examples.delays_by_airport import delays_by_airport
from examples.flights_with_weather import flights_with_weather
from tests.spark.flights import NAME, Flights, Window, closed, windows


class Table:
    """Runs an example's stream over all there is, again and again on one checkpoint, and keeps the rows it gives."""

    def __init__(self, spark: SparkSession, container: Path, example: Callable[[DataFrame], DataFrame]) -> None:
        self._spark, self._container, self._example = spark, container, example
        self._batches: dict[int, list[Row]] = {}

    def run(self) -> list[Row]:
        """The rows received so far."""
        rows = self._example(stream_output(self._spark, str(self._container), NAME))
        query = (
            rows.writeStream.foreachBatch(self._keep)
            .option("checkpointLocation", f"{self._container}-checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        if not query.awaitTermination(120):
            query.stop()
            raise TimeoutError(f"the stream does not end: {query.lastProgress}")
        return [row for batch in self._batches.values() for row in batch]

    def _keep(self, frame: DataFrame, batch: int) -> None:
        self._batches[batch] = frame.collect()


@pytest.mark.slow
async def test_each_closed_hour_of_an_airport_is_emitted_once(spark: SparkSession, tmp_path: Path) -> None:
    departures = load_departures()[:8_000]
    flights, table = Flights(str(tmp_path / "state")), Table(spark, tmp_path / "state", delays_by_airport)

    # `availableNow` ends with a batch without data, for the windows that the last one closed.
    await flights.commit(departures[:3_000])
    first = closed(departures[:3_000])
    assert len(windows(departures[:3_000])) > len(first) > 100  # some are still open
    assert Counter(Window(*row) for row in table.run()) == Counter(first)

    await flights.commit(departures[3_000:])  # open windows go on from the checkpoint
    await flights.commit(departures[:1])  # after the window of its hour was closed
    assert Counter(Window(*row) for row in table.run()) == Counter(closed(departures))


@pytest.mark.slow
async def test_each_flight_is_joined_with_its_weather_once(spark: SparkSession, tmp_path: Path) -> None:
    departures = load_departures()[215_500:217_000]
    flights, table = Flights(str(tmp_path / "state")), Table(spark, tmp_path / "state", flights_with_weather)
    await flights.commit(departures)
    read = csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True)
    measured = {
        (row["origin"], row["time_hour"]): (row["temp"], row["wind_speed"], row["precip"], row["visib"])
        for row in csv.read_csv(data_file("weather.csv"), convert_options=read).to_pylist()
    }

    def weather(flight: dict[str, Any]) -> Sequence[float | None]:
        return measured.get((flight["origin"], flight["time_hour"]), (None,) * 4)

    expected = Counter(
        (*(row[name] for name in ("carrier", "flight", "scheduled", "dep_delay")), *weather(row))
        for row in departures.to_pylist()
        if row["dep_delay"] is not None
    )
    found = Counter(
        (r.carrier, r.flight, _utc(r.scheduled), r.minutes, r.temp, r.wind_speed, r.precip, r.visib)
        for r in table.run()
    )
    assert found == expected
    assert any(row[-1] is None for row in expected)
    assert any(row[-1] is not None for row in expected)


def _utc(time: datetime) -> datetime:
    """Spark gives times of this process's own time zone, without saying so."""
    return time.astimezone(UTC)
