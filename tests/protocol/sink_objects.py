"""Objects of the model of sinks (sink_model.py): entry, document, row, database, container, owners."""

from __future__ import annotations

from typing import NamedTuple


class Term(NamedTuple):
    """`life`: of the sink under this processor id. `token`: drawn anew with each term (here: by the history)."""

    processor: int = 0
    life: int = 0
    epoch: int = 0
    token: int = 0


class Entry(NamedTuple):
    term: Term
    start: int
    held: int
    generation: int = 0
    redos: tuple[tuple[int, int], ...] = ()
    """Of each redeliver its epoch, and where it begins."""
    paused: bool = False


class Document(NamedTuple):
    owner: int = 0
    life: int = -1
    generation: int = 0
    position: int = 0


class Row(NamedTuple):
    """`term`: None until the first delivery, if the sink was paused before."""

    term: Term | None = None
    position: int = 0
    put_id: int = 0
    fence: int = 0


class Tag(NamedTuple):
    """A row of commit `number`, or with `refused` in the table of refused rows."""

    processor: int
    life: int
    number: int
    put_id: int
    refused: bool = False


class Try(NamedTuple):
    epoch: int
    put_id: int
    refused: bool


class Database(NamedTuple):
    """For the checks: `start` of the row's life, `high`, its highest position, and `tries` of each commit."""

    row: Row | None = None
    rows: tuple[Tag, ...] = ()
    start: int = 0
    high: int = 0
    tries: tuple[tuple[Try, ...], ...] = ()


class Delivery(NamedTuple):
    """A transaction. For the checks: `start` of the life, and `wrong`, why its rows should not be in the sink."""

    was: Row | None
    row: Row
    since: int
    rows: tuple[Tag, ...]
    start: int
    wrong: str = ""
    kept: bool = False
    """Its refused rows were kept beforehand."""


class Owner(NamedTuple):
    """Phase 'open', 'read', 'confirm', 'at', 'deliver', 'kept', 'owes', 'done'. `fresh` (for the checks): it has read
    the row since the database went back. `narrow`: its handler lacks the column that later commits have."""

    name: int
    phase: str
    entry: Entry
    row: Row | None = None
    position: int = 0
    delivery: Delivery | None = None
    fresh: bool = False
    narrow: bool = False


class Container(NamedTuple):
    """`put_ids`: of the chain's commits. `asked` (for the checks): redelivers without effect, epoch and number."""

    put_ids: tuple[int, ...] = ()
    boundary: int = 0
    lowest: int = 0
    version: int = 0
    entry: Entry | None = None
    document: Document = Document()
    void: int | None = None
    asked: tuple[tuple[int, int], ...] = ()


class Left(NamedTuple):
    """How often each event may still happen."""

    opens: int = 0
    late: int = 0
    trims: int = 0
    void: int = 0
    backups: int = 0
    restores: int = 0
    redelivers: int = 0
    deletes: int = 0
    anew: int = 0
    pauses: int = 0
    saves: int = 0
    losses: int = 0


class State(NamedTuple):
    container: Container = Container()
    saved: Container | None = None
    history: int = 0
    cut: int = 0
    """Where the chain of history 1 leaves that of history 0."""
    database: Database = Database()
    backup: Database = Database()
    trim: tuple[int, int] | None = None
    owners: tuple[Owner, ...] = ()
    flying: Delivery | None = None
    paused: str = ""
    seen: bool = True
    """Nobody trims by a position that has fallen: an owner has seen it, or it has not fallen."""
    left: Left = Left()
    wrong: str | None = None


def ours(row: Row, entry: Entry) -> bool:
    return row.term is not None and row.term[:2] == entry.term[:2]


def counts(document: Document, entry: Entry) -> bool:
    return (document.life, document.generation) == (entry.term.life, entry.generation)


def needs(c: Container, database: Database) -> int:
    """The next commit that the sink needs."""
    row, entry = database.row, c.entry
    assert entry is not None
    if row is None or row.term is None or not ours(row, entry):
        return entry.start
    return min([row.position, *redos(row.term, entry), *(first for _, first in c.asked)])


def redos(term: Term, entry: Entry) -> list[int]:
    """Where those redelivers begin that a row with this term has not seen."""
    return [first for epoch, first in entry.redos if epoch > term.epoch]
