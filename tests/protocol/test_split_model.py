"""The model of partitions that end: whole, it holds in every interleaving; with any rule left out, it breaks."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import fields

import pytest

from tests.protocol.split_model import ALL, BREAKS, HOLDS, HOLDS_LONG

SLOW = {
    "a forgotten partition that is left alone",
    "parents' positions that are compared",
    "at most once, an end that is only a checkpoint",
}


def params(names: Iterable[str], *, slow: Collection[str] = (), long: Collection[str]) -> list[object]:
    def marks(name: str) -> list[pytest.MarkDecorator]:
        return [pytest.mark.long] if name in long else [pytest.mark.slow] if name in slow else []

    return [pytest.param(name, marks=marks(name)) for name in names]


@pytest.mark.parametrize("name", params([*HOLDS, *HOLDS_LONG], slow=list(HOLDS)[1:], long=HOLDS_LONG))
def test_with_all_rules_every_interleaving_is_safe(name: str) -> None:
    found = {**HOLDS, **HOLDS_LONG}[name].search()
    assert (found.why, found.complete) == (None, True), found.trace


@pytest.mark.parametrize("name", params(BREAKS, long=SLOW))
def test_without_one_rule_a_trace_breaks_it(name: str) -> None:
    found = BREAKS[name].search()
    assert found.why is not None
    assert 4 < len(found.trace) < 30


def test_every_rule_has_a_search_that_leaves_it_out() -> None:
    left_out = [[rule.name for rule in fields(ALL) if not getattr(model.rules, rule.name)] for model in BREAKS.values()]
    assert {*map(tuple, left_out)} == {(rule.name,) for rule in fields(ALL)}
