"""What an error of MySQL or MariaDB is about: a row, somebody else's transaction, or the server and its tables."""

from __future__ import annotations

import pymysql
from pymysql.constants import ER

_VALUES = {
    1264,  # out of range
    1265,  # truncated: ENUM, SET, numbers
    1292,  # incorrect value: dates, times, numbers in an expression
    1300,  # invalid characters
    1365,  # division by zero
    1366,  # incorrect value for a column
    1367,  # illegal value for a type
    1406,  # too long
    1411,  # incorrect value for a function
    1416,  # no geometry
    1441,  # overflow of a date
    1525,  # incorrect value, of MySQL 8
    1690,  # out of range in an expression
    1977,  # MariaDB: cannot convert characters
    3037, 3548, 3616, 3617, 3643,  # MySQL: geometry, its reference system
    3140, 3141, 3144, 3150, 3156, 3157, 3158,  # MySQL: JSON
    3751, 3752, 3903, 3904, 3907,  # MySQL: the index of an expression
    3854,  # MySQL: cannot convert characters
}  # fmt: skip
"""SQLSTATE 22xxx, and those of HY000 and 01000 that are of the same kind. In strict mode a warning is an error."""

_CONSTRAINTS = {
    1022, 1062, 1169, 1557, 1586, 1761, 1762, 1859,  # a key that is there
    1048, 1263, 1364,  # null, or no default
    1216, 1217, 1451, 1452,  # a foreign key
    1369,  # CHECK OPTION of a view
    1526, 1748,  # no partition for the value
    3819, 4025,  # CHECK, of MySQL and of MariaDB
}  # fmt: skip
"""SQLSTATE 23xxx, and those of HY000 and 44000 that are of the same kind."""

_SIZES = {
    1118, 1713,  # a row that is too large for a page, or for the undo log
    1162, 1301,  # a result longer than max_allowed_packet; a longer statement is never sent
}  # fmt: skip

_TRIGGERS = {1643, 1644}
"""SIGNAL, unless the trigger sets a number of its own."""

_OWN_NUMBERS = 20_000
"""No server has errors from here on: they are numbers that triggers set."""

_NUMBERS = 65_536
"""PyMySQL takes the upper half of them for negative ones."""

_OF_A_ROW = _VALUES | _CONSTRAINTS | _SIZES | _TRIGGERS

_TAKEN = {ER.DUP_ENTRY, ER.LOCK_DEADLOCK}

_NO_PASSWORD = 1698
"""MariaDB's other "access denied"."""

_LASTING = {
    ER.DBACCESS_DENIED_ERROR, ER.ACCESS_DENIED_ERROR, ER.BAD_DB_ERROR, ER.HOST_NOT_PRIVILEGED,
    ER.TABLEACCESS_DENIED_ERROR, ER.COLUMNACCESS_DENIED_ERROR, ER.SPECIFIC_ACCESS_DENIED_ERROR,
    ER.NO_SUCH_TABLE, ER.BAD_FIELD_ERROR, ER.TOO_LONG_KEY, ER.TOO_BIG_ROWSIZE, ER.WRONG_OBJECT,
    ER.VIEW_INVALID, ER.NONUPDATEABLE_COLUMN, ER.UNKNOWN_COLLATION, ER.NOT_SUPPORTED_AUTH_MODE, _NO_PASSWORD,
}  # fmt: skip
"""Errors of `open` that last until somebody changes a right, a name or a table."""


def is_of_a_row(error: BaseException) -> bool:
    """Whether the row is refused, and would be again. Everything else is of the server or its tables: tried again."""
    if isinstance(error, pymysql.err.DataError | pymysql.err.IntegrityError):
        return True
    return _code(error) in _OF_A_ROW or _code(error) % _NUMBERS >= _OWN_NUMBERS


def is_taken(error: BaseException) -> bool:
    """Whether another transaction was first."""
    return _code(error) in _TAKEN


def lasts(error: BaseException) -> bool:
    """Whether an error of `open` lasts."""
    if isinstance(error, pymysql.err.ProgrammingError | pymysql.err.NotSupportedError | FileNotFoundError):
        return True
    return _code(error) in _LASTING


def text_of(error: Exception) -> str:
    """The error in one line."""
    return " ".join(str(error.args[-1] if error.args else error).split())


def _code(error: BaseException) -> int:
    return error.args[0] if isinstance(error, pymysql.err.MySQLError) and _is_number(error.args) else 0


def _is_number(args: tuple[object, ...]) -> bool:
    return bool(args) and isinstance(args[0], int)
