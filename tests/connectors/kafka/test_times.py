"""The time at which a Kafka source begins, as the broker is asked for it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from actorproc.connectors.kafka.brokers import Brokers


@pytest.mark.parametrize("milliseconds", [-1, -2, -1001, -(10**12), 0])
async def test_a_time_before_1970_is_no_name_of_the_topics_end(milliseconds: int) -> None:
    """A broker reads the time -1 as the end and -2 as the beginning."""
    asked: list[int] = []

    class Asked(Brokers):
        def __init__(self) -> None:
            self.timeout = 1.0
            self._client: Any = SimpleNamespace(offsets_for_times=self._answer)

        async def _ask(self, question: Callable[[], Any], what: str) -> Any:
            return question()

        def _answer(self, places: list[Any], timeout: float) -> list[Any]:
            asked.extend(place.offset for place in places)
            return [SimpleNamespace(offset=7)]

    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
    assert await Asked().offset_at(("topic", 0), at) == 7
    assert asked == [0]
