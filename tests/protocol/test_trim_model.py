"""The model of trimming: whole, it holds in every interleaving; with any rule left out, it breaks."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tests.protocol.trim_model import ALL, BREAKS, HOLDS, HOLDS_LONG, Rules


@pytest.mark.parametrize("name", HOLDS)
def test_with_all_rules_every_interleaving_is_safe(name: str) -> None:
    found = HOLDS[name].search()
    assert found.why is None, "\n".join([found.why or "", *found.trace])
    assert found.complete
    assert found.states > 10_000


@pytest.mark.long
@pytest.mark.parametrize("name", HOLDS_LONG)
def test_within_wider_bounds_too(name: str) -> None:
    found = HOLDS_LONG[name].search()
    assert found.why is None, "\n".join([found.why or "", *found.trace])
    assert found.complete


@pytest.mark.parametrize("name", BREAKS)
def test_without_one_rule_a_trace_breaks_it(name: str) -> None:
    found = BREAKS[name].search()
    assert found.why is not None
    assert 4 < len(found.trace) < 20


def test_every_rule_has_a_search_that_leaves_it_out() -> None:
    left_out = [
        {field.name for field in fields(Rules) if not getattr(model.rules, field.name)} for model in BREAKS.values()
    ]
    assert sorted(name for names in left_out for name in names) == sorted(field.name for field in fields(Rules))
    assert all(len(names) == 1 for names in left_out)


def test_what_is_expected_to_hold_keeps_every_rule() -> None:
    assert all(model.rules == ALL for model in {**HOLDS, **HOLDS_LONG}.values())
