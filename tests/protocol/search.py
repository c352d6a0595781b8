"""Breadth-first search through all states of a model, and a runner for a table of models."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import NamedTuple, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)


class Found(NamedTuple):
    """The result of a search: the broken invariant `why` and the `trace` to it, or None and an empty trace."""

    states: int
    why: str | None
    trace: list[str]
    complete: bool


class Searchable(Protocol):
    """A model with its bounds."""

    def search(self) -> Found: ...


def explore(
    start: S,
    steps: Callable[[S], Iterable[tuple[str, S]]],
    broken: Callable[[S], str | None],
    limit: int = 3_000_000,
    done: Callable[[S], bool] | None = None,
) -> Found:
    """All states that `steps` lead to; stops at the first one that is `broken`, with the shortest trace to it.

    Args:
        done: if given, a state from which no state that is `done` can be reached is broken, too.
    """
    came: dict[S, tuple[S, str] | None] = {start: None}
    before: dict[S, list[S]] = {}  # state -> the states that lead to it
    todo = deque([start])
    while todo and len(came) < limit:
        state = todo.popleft()
        if why := broken(state):
            return Found(len(came), why, _trace(came, state), True)
        for label, after in steps(state):
            if after not in came:
                came[after] = (state, label)
                todo.append(after)
            if done:
                before.setdefault(after, []).append(state)
    if done and not todo and (stuck := _stuck(came, before, done)) is not None:
        return Found(len(came), "can never be finished from here", _trace(came, stuck), True)
    return Found(len(came), None, [], not todo)


def _stuck(states: Iterable[S], before: Mapping[S, list[S]], done: Callable[[S], bool]) -> S | None:
    """The first state from which no state that is done can be reached."""
    good = {state for state in states if done(state)}
    todo = list(good)
    while todo:
        for state in before.get(todo.pop(), ()):
            if state not in good:
                good.add(state)
                todo.append(state)
    return next((state for state in states if state not in good), None)


def _trace(came: Mapping[S, tuple[S, str] | None], state: S) -> list[str]:
    labels = []
    while (step := came[state]) is not None:
        state, label = step
        labels.append(label)
    return labels[::-1]


def report(holding: Mapping[str, Searchable], breaking: Mapping[str, Searchable]) -> int:
    """Search each model and print its result. Returns the number of unexpected results."""
    failed = 0
    for name, model in {**holding, **breaking}.items():
        found = model.search()
        expected = (found.why is not None) == (name in breaking) and found.complete
        failed += not expected
        verdict = "as expected" if expected else "UNEXPECTED"
        print(f"{verdict:12}{name:58}{found.states:9,} states  {found.why or 'holds'}", flush=True)
        for label in found.trace:
            print("   ", label)
    return failed
