"""The model of compaction: whole, it holds in every interleaving; with any rule left out, it breaks."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tests.protocol.commit_model import Rules
from tests.protocol.compaction_model import BREAKS, HOLDS, HOLDS_LONG, WHOLE, CompactionRules


@pytest.mark.parametrize("name", [*HOLDS, *(pytest.param(name, marks=pytest.mark.long) for name in HOLDS_LONG)])
def test_with_all_rules_every_interleaving_is_safe(name: str) -> None:
    model = {**HOLDS, **HOLDS_LONG}[name]
    assert model.rules == WHOLE
    found = model.search()
    assert found.why is None, "\n".join([found.why or "", *found.trace])
    assert found.complete
    assert found.states > 3_000


@pytest.mark.parametrize("name", BREAKS)
def test_without_one_rule_a_trace_breaks_it(name: str) -> None:
    found = BREAKS[name].search()
    assert found.why is not None
    assert 8 < len(found.trace) < 20


def test_every_rule_of_compaction_has_a_search_that_leaves_it_out() -> None:
    left_out = [
        [field.name for field in fields(CompactionRules) if not getattr(model.rules, field.name)]
        for model in BREAKS.values()
    ]
    own = {field.name for field in fields(CompactionRules)} - {field.name for field in fields(Rules)}
    assert sorted(left_out) == sorted([name] for name in own)
