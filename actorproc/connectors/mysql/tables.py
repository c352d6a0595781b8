"""What a table must be like: able to roll back, and with a key in which no two values are equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from actorproc.sinks.protocol import SinkRefused

_EXACT = ("_nopad_bin", "_0900_bin")
"""Ends of the collations by which no two texts are equal. Others that end in `_bin` ignore spaces at the end."""

_PADDED = ("char", "binary")
"""Types whose values lose their end, or get another one."""


def check_engine(connection: Any, table: Sequence[str]) -> None:
    """Raises SinkRefused: a table, if it is there, is on an engine that cannot roll back."""
    found = information(
        connection, table, "t.engine",
        "tables t LEFT JOIN information_schema.engines e ON e.engine = t.engine",
        "t.engine IS NOT NULL AND NOT COALESCE(e.transactions = 'YES' AND e.savepoints = 'YES', FALSE)",
    )  # fmt: skip
    for (engine,) in found:
        raise SinkRefused(
            f"table {'.'.join(table)} is on the engine {engine}, which cannot roll back: "
            f"ALTER TABLE {_quoted(*table)} ENGINE = InnoDB"
        )


def check_keys(connection: Any, table: Sequence[str], key: Sequence[str], collation: str) -> None:
    """Refuse a key in which different values are equal: a row would replace rows of other keys.

    Args:
        collation: one that a text may have instead.

    Raises:
        SinkRefused: a column is padded, or compares without case, accents or spaces at the end.
    """
    what = "column_name, data_type, column_type, collation_name"
    for name, kind, declared, found in information(connection, table, what, "columns t"):
        if name not in key or (kind not in _PADDED and (found is None or found.endswith(_EXACT))):
            continue
        wanted = f"var{declared}" if kind in _PADDED else declared
        if found is not None:
            wanted += f" CHARACTER SET utf8mb4 COLLATE {collation}"
        raise SinkRefused(
            f"table {'.'.join(table)}: different keys are equal in its column {name}, {declared}"
            f"{f' with the collation {found}' if found else ''}: "
            f"ALTER TABLE {_quoted(*table)} MODIFY {_quoted(name)} {wanted} NOT NULL"
        )


def information(
    connection: Any, table: Sequence[str], what: str, of: str, where: str = "TRUE"
) -> Sequence[tuple[Any, ...]]:
    """What `information_schema` knows about a table. `of` is a view of it, with the alias `t`."""
    schema = "DATABASE()" if len(table) == 1 else "%s"
    cursor = connection.cursor()
    cursor.execute(
        f"SELECT {what} FROM information_schema.{of} WHERE t.table_schema = {schema} AND t.table_name = %s AND {where}",
        tuple(table),
    )
    return cursor.fetchall()  # type: ignore[no-any-return]


def _quoted(*names: str) -> str:
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)
