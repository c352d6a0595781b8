"""Writes a dead letter as a test: the same batch, options, epoch and state, run by `run_handler`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from keyword import iskeyword
from typing import Any

from actorproc.handler.keyed_state import TIMERS, Key
from actorproc.output.letter import decoded
from actorproc.state.reading import CommittedState

MOST_KEYS = 1_000
"""Keys of state that a test holds. Of a larger state it holds the keys that equal the key of a record."""

_TEMPLATE = '''"""{title}

Written by `actorproc debug`. Stop where it fails: python -m pytest --pdb FILE
{notes}"""

import datetime
import importlib
import os

import anyio

from actorproc import Batch, Settings
from actorproc.testing import run_handler
{imported}

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
STATES = {states}


async def run():
    return await run_handler(
        {path}, BATCH, options=OPTIONS, settings=SETTINGS, states=STATES, epoch={epoch!r}, raise_errors=True
    )


def test_letter():
    assert anyio.run(run).dead_letters == []
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOptions:
    """How the handler ran."""

    __test__ = False  # for pytest: the class only begins with that word

    handler: str
    """MODULE:CLASS."""
    options: Mapping[str, object] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    """Options that come from the environment: name -> variable. Their values may be secrets, and are not written."""
    config: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


def debug_script(letter: Mapping[str, Any], how: ScriptOptions, state: CommittedState | None) -> str:
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
        imported=_import(module, path.partition(".")[0]), path=path,
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


def _import(module: str, name: str) -> str:
    """The statement that imports it. A file may have a name that is no word of Python."""
    if all(part.isidentifier() and not iskeyword(part) for part in module.split(".")):
        return f"from {module} import {name}"
    return f"{name} = importlib.import_module({module!r}).{name}"


def _literal(value: object) -> str:
    """A value of a settings file or of state as source: as its `repr`, but for numbers that Python has no literal for.

    Raises:
        RecursionError: it is nested too deep.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_literal(key)}: {_literal(held)}' for key, held in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    return repr(value)


def _compiles(source: str) -> bool:
    try:
        compile(source, "", "eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: brackets in brackets
        return False
    return True


def _options(how: ScriptOptions) -> str:
    given = [f"{name!r}: {_literal(value)}" for name, value in how.options.items() if name not in how.variables]
    return f"{{{', '.join([*given, *(f'{n!r}: os.environ[{v!r}]' for n, v in how.variables.items())])}}}"


def _states(state: CommittedState | None, keys: list[bytes | None]) -> tuple[str, list[str]]:
    """The state that the test begins with, as source, and a comment about it."""
    if state is None or not state.names:
        return "{}", []
    notes = [f"STATES is what commit {state.number - 1} has left: later records may have changed it."]
    found = {name: dict(state.items(name)) for name in state.names if name != TIMERS}
    if sum(map(len, found.values())) > MOST_KEYS:
        wanted = {*keys, *(key.decode(errors="replace") for key in keys if key is not None)}
        found = {name: {k: v for k, v in held.items() if k in wanted} for name, held in found.items()}
        notes.append(f"It has more than {MOST_KEYS:,} keys, so only those of the records are here.")
    sources, left_out = [], 0
    for name, held in found.items():
        values = [text for key, value in held.items() if (text := _entry(key, value)) is not None]
        left_out += len(held) - len(values)
        sources += [f"{name!r}: {{{', '.join(values)}}}"] if values else []
    if left_out:
        notes.append(f"{left_out:,} of its values are nested too deep for Python source, and are not here.")
    return f"{{{', '.join(sources)}}}", notes


def _entry(key: Key, value: object) -> str | None:
    try:
        text = f"{key!r}: {_literal(value)}"
    except RecursionError:
        return None
    return text if _compiles(f"{{'': {{{text}}}}}") else None


def _docstring(text: str) -> str:
    """The text on one line, without characters that would end a docstring or that Python refuses, such as NUL."""
    line = " ".join(text[:2000].split()).replace("\\", "/").replace('"', "'")[:200]
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in line)
