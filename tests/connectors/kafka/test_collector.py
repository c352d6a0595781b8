"""Pauses of the cycle collector."""

from __future__ import annotations

import gc

from actorproc.connectors.kafka.collector import collector_paused


def test_overlapping_pauses_end_with_the_last_one() -> None:
    first, second = collector_paused(), collector_paused()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_a_collector_that_the_application_has_disabled_stays_so() -> None:
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
