"""How long a value has not changed."""

from __future__ import annotations

from actorproc.runtime.stillness import Stillness


def test_a_still_value_is_reported_once_per_limit() -> None:
    still = Stillness()
    assert [still.lasts("a", 2, float(now)) for now in range(8)] == [
        False,
        False,
        True,
        False,
        False,
        True,
        False,
        False,
    ]


def test_a_change_begins_anew() -> None:
    still = Stillness()
    still.lasts("a", 10, 0.0)
    still.lasts("b", 10, 4.0)
    assert still.seconds(9.0) == 5.0


def test_nothing_to_wait_for_does_not_count() -> None:
    still = Stillness()
    still.lasts("a", 10, 0.0)
    assert not still.lasts(None, 10, 20.0)
    assert still.seconds(30.0) == 0.0
