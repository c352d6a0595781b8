"""Which errors of PostgreSQL are about a row, by SQLSTATE."""

from __future__ import annotations

import psycopg

_OF_SERVER_OR_TABLE = {
    "00", "01", "02", "03", "08", "0A", "0B", "0L", "0P", "25", "26", "28", "2B", "2D", "34", "3B", "3D", "3F", "40",
    "42", "53", "55", "57", "58", "72", "F0", "HV", "XX",
}  # fmt: skip
"""Classes of errors after which the same row may go in: a lost connection, a lock, a full disk, a missing right or
column. Row-level security is one of them: it has the code of a missing right."""

_OF_STATEMENT = {"54011", "54023"}
"""Too many columns or arguments. The rest of class 54 is about a row: it, its key or its JSON is too large."""


def is_of_row(error: BaseException) -> bool:
    """Whether a row is the cause: a value that does not fit (22, 23, 44, 54), or an error of a trigger. A trigger
    raises P0001, codes of its language (38), or any code of its own."""
    if not isinstance(error, psycopg.Error) or error.sqlstate is None:
        return False
    return error.sqlstate[:2] not in _OF_SERVER_OR_TABLE and error.sqlstate not in _OF_STATEMENT
