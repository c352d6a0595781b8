"""Writes a dead letter as a test: the same batch, options, epoch and state, run by `run_handler`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from actorproc.handler.state import TIMERS, Key
from actorproc.output.dead_letters import decoded
from actorproc.state.reading import CommittedState

MOST_KEYS = 1_000
"""Keys of state that a test holds. Of a larger state it holds the keys that equal the key of a record."""

_TEMPLATE = '''"""{title}

Written by `actorproc debug`. Stop where it fails: python -m pytest --pdb FILE
{notes}"""

import datetime
import os

import anyio

from actorproc import Batch, Settings
from actorproc.testing import run_handler
from {module} import {name}

BATCH = Batch.of(
    {partition!r},
    {values!r},
    {sequences!r},
    keys={keys!r},
    headers={headers!r},
    timestamps={timestamps!r},
)
OPTIONS = {options}
SETTINGS = Settings.load({settings})
STATES = {states!r}


async def run():
    return await run_handler(
        {path}, BATCH, options=OPTIONS, settings=SETTINGS, states=STATES, epoch={epoch!r}, raise_errors=True
    )


def test_letter():
    assert anyio.run(run).dead_letters == []
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class TestOptions:
    """How the handler ran."""

    __test__ = False  # for pytest: the class only begins with that word

    handler: str
    """MODULE:CLASS."""
    options: Mapping[str, object] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    """Options that come from the environment: name -> variable. Their values may be secrets, and are not written."""
    config: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


def letter_test(letter: Mapping[str, Any], how: TestOptions, state: CommittedState | None) -> str:
    """The test as Python source.

    Args:
        letter: as it is stored, or as `dead-letters list --json` prints it.
        state: of its partition; None: the partition has none.
    """
    module, _, path = how.handler.partition(":")
    records = [*letter.get("earlier", ()), letter]
    keys = [_bytes(record, "key") for record in records]
    states, notes = _states(state, keys)
    if letter.get("earlier"):
        notes.append("on_wake has given these records up. Here they go through process, which may not fail.")
    error = letter["error"]
    title = f"Dead letter {letter['partition']}:{letter['sequence']}: {error['type']}: {error['message']}"
    settings = {"max_attempts": 1, **how.settings}
    return _TEMPLATE.format(
        title=_docstring(title), notes="".join(f"\n{note}\n" for note in notes),
        module=module, name=path.partition(".")[0], path=path,
        partition=letter["partition"],
        values=[_bytes(record, "value") for record in records],
        sequences=[record["sequence"] for record in records],
        keys=keys,
        headers=[[(h["key"], decoded(h["value"], h.get("encoding"))) for h in record["headers"]] for record in records],
        timestamps=_Source(f"[{', '.join(map(_time, records))}]"),
        options=_options(how), states=states, epoch=letter["epoch"],
        settings=", ".join([repr(how.config), *(f"{name}={value!r}" for name, value in settings.items())]),
    )  # fmt: skip


class _Source(str):
    """Python source, which `!r` leaves as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _bytes(record: Mapping[str, Any], name: str) -> bytes | None:
    return decoded(record[name], record.get("key_encoding" if name == "key" else "encoding"))


def _time(record: Mapping[str, Any]) -> str:
    text = record["timestamp"]
    return "None" if text is None else f"datetime.datetime.fromisoformat({text!r})"


def _options(how: TestOptions) -> str:
    given = [f"{name!r}: {value!r}" for name, value in how.options.items() if name not in how.variables]
    return f"{{{', '.join([*given, *(f'{n!r}: os.environ[{v!r}]' for n, v in how.variables.items())])}}}"


def _states(state: CommittedState | None, keys: list[bytes | None]) -> tuple[dict[str, dict[Key, Any]], list[str]]:
    """The state that the test begins with, and what to know about it."""
    if state is None or not state.names:
        return {}, []
    notes = [f"STATES is what commit {state.number - 1} has left: later records may have changed it."]
    found = {name: dict(state.items(name)) for name in state.names if name != TIMERS}
    if sum(map(len, found.values())) > MOST_KEYS:
        wanted = {*keys, *(key.decode(errors="replace") for key in keys if key is not None)}
        found = {name: {k: v for k, v in held.items() if k in wanted} for name, held in found.items()}
        notes.append(f"It has more than {MOST_KEYS:,} keys, so only those of the records are here.")
    return {name: held for name, held in found.items() if held}, notes


def _docstring(text: str) -> str:
    """The text on one line, without what would end a docstring."""
    return " ".join(text.split()).replace("\\", "/").replace('"', "'")[:200]
