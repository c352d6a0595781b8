"""The models of sinks and tables: whole, each holds in every interleaving; with any rule left out, it breaks."""

from __future__ import annotations

import re
from dataclasses import fields
from types import ModuleType

import pytest

from tests.protocol import sink_keyed_model, sink_model, table_model
from tests.protocol.test_models import holds, left_out

MODELS = [sink_model, sink_keyed_model, table_model]


def searches(table: str) -> list[object]:
    """The entries of the tables with this name, as parameters: the model and the search's name."""
    return [
        pytest.param(model, name, marks=marks(model, table, name), id=f"{model.__name__.rpartition('.')[2]}-{name}")
        for model in MODELS
        for name in getattr(model, table)
    ]


def marks(model: ModuleType, table: str, name: str) -> list[pytest.MarkDecorator]:
    """The first search of each model that holds is for every run."""
    if table == "HOLDS_LONG" or name in model.BREAKS_LONG:
        return [pytest.mark.long]
    return [pytest.mark.slow] if table == "HOLDS" and name != next(iter(model.HOLDS)) else []


@pytest.mark.parametrize(("model", "name"), searches("HOLDS"))
def test_with_all_rules_every_interleaving_is_safe(model: ModuleType, name: str) -> None:
    found = model.HOLDS[name].search()
    assert holds(found)
    assert found.states > 1_000


@pytest.mark.parametrize(("model", "name"), searches("HOLDS_LONG"))
def test_within_wider_bounds_too(model: ModuleType, name: str) -> None:
    assert holds(model.HOLDS_LONG[name].search())


@pytest.mark.parametrize(("model", "name"), searches("BREAKS"))
def test_without_one_rule_a_trace_breaks_it(model: ModuleType, name: str) -> None:
    found = model.BREAKS[name].search()
    assert found.why is not None
    assert 2 < len(found.trace) < 30


@pytest.mark.parametrize("model", MODELS)
def test_every_rule_has_a_search_that_leaves_it_out(model: ModuleType) -> None:
    assert sorted(left_out(model)) == sorted([rule.name] for rule in fields(model.ALL))


@pytest.mark.parametrize("model", MODELS)
def test_the_steps_of_a_model_name_every_rule(model: ModuleType) -> None:
    assert {rule.name for rule in fields(model.ALL)} <= set(re.findall(r"`(\w+)`", model.__doc__ or ""))


@pytest.mark.parametrize("model", MODELS)
def test_a_search_that_should_hold_checks_every_rule(model: ModuleType) -> None:
    assert all(search.rules == model.ALL for search in {**model.HOLDS, **model.HOLDS_LONG}.values())
