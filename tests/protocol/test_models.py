"""The models of the protocol: whole, each holds in every interleaving; with any rule left out, it breaks."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.protocol import (
    commit_model,
    compaction_model,
    forward_model,
    grow_model,
    inherit_model,
    log_sink_model,
    queue_model,
    record_model,
    reset_model,
    sink_keyed_model,
    sink_model,
    state_model,
    table_model,
    timer_model,
    trim_model,
)
from tests.protocol.search import Found

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"

WHOLE: dict[ModuleType, Any] = {
    commit_model: commit_model.ALL,
    trim_model: trim_model.ALL,
    compaction_model: compaction_model.WHOLE,
    state_model: state_model.ALL,
    inherit_model: inherit_model.ALL,
    forward_model: forward_model.ALL,
    queue_model: queue_model.ALL,
    record_model: record_model.ALL,
    reset_model: reset_model.ALL,
    grow_model: grow_model.ALL,
    timer_model: timer_model.ALL,
    sink_model: sink_model.ALL,
    sink_keyed_model: sink_keyed_model.ALL,
    table_model: table_model.ALL,
    log_sink_model: log_sink_model.ALL,
}


def searches(table: str) -> list[object]:
    """The entries of the tables with this name, as parameters: the model and the search's name."""
    return [
        pytest.param(
            model,
            name,
            marks=marks(model, table, number, name),
            id=f"{model.__name__.rpartition('.')[2]}-{name}",
        )
        for model in WHOLE
        for number, name in enumerate(getattr(model, table))
    ]


def marks(model: ModuleType, table: str, number: int, name: str) -> list[pytest.MarkDecorator]:
    """The first search of each model that holds is for every run."""
    if table == "HOLDS_LONG" or name in getattr(model, "BREAKS_LONG", ()):
        return [pytest.mark.long]
    return [pytest.mark.slow] if table == "HOLDS" and number else []


def left_out(model: ModuleType) -> list[list[str]]:
    """The rules that each search of BREAKS does without."""
    return [
        [rule.name for rule in fields(search.rules) if not getattr(search.rules, rule.name)]
        for search in model.BREAKS.values()
    ]


def holds(found: Found) -> bool:
    assert found.why is None, "\n".join([found.why or "", *found.trace])
    return found.complete


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


@pytest.mark.parametrize("model", WHOLE)
def test_every_rule_has_a_search_that_leaves_it_out(model: ModuleType) -> None:
    own = {rule.name for rule in fields(WHOLE[model])}
    if model is compaction_model:
        own -= {rule.name for rule in fields(commit_model.Rules)}  # it builds upon them
    assert sorted(left_out(model)) == sorted([name] for name in own)


@pytest.mark.parametrize("model", WHOLE)
def test_the_page_lists_the_rules_of_each_model(model: ModuleType) -> None:
    _, found, text = PAGE.read_text().partition(f"`tests/protocol/{model.__name__.rpartition('.')[2]}.py` ")
    table = text.partition("| rule | without it |\n|---|---|\n")[2].partition("\n\n")[0]
    assert found
    assert [[name] for name in re.findall(r"^\| `(\w+)`: .+ \| .+ \|$", table, re.MULTILINE)] == left_out(model)
    assert len(table.splitlines()) == len(model.BREAKS), "a line that names no rule"


@pytest.mark.parametrize("model", [sink_model, sink_keyed_model, table_model, log_sink_model])
def test_the_steps_of_a_model_name_every_rule(model: ModuleType) -> None:
    assert {rule.name for rule in fields(model.ALL)} <= set(re.findall(r"`(\w+)`", model.__doc__ or ""))


@pytest.mark.parametrize("model", WHOLE)
def test_a_search_that_should_hold_checks_every_rule(model: ModuleType) -> None:
    assert all(search.rules == WHOLE[model] for search in {**model.HOLDS, **model.HOLDS_LONG}.values())
