"""`Session`: a connection that behaves the same on every server, whatever its defaults are."""

from __future__ import annotations

from typing import Any

import pymysql
from pymysql.constants import CLIENT
from pymysql.cursors import Cursor

from actorproc.sinks.protocol import SinkRefused

_SETTINGS = {
    "sql_mode": "'TRADITIONAL'",  # a value that does not fit fails; also, a backslash escapes
    "time_zone": "'+00:00'",  # of TIMESTAMP columns
    "default_storage_engine": "InnoDB",
    "default_tmp_storage_engine": "InnoDB",
    "completion_type": "NO_CHAIN",
    "foreign_key_checks": "1",
    "unique_checks": "1",
    "sql_safe_updates": "0",
    "sql_big_selects": "1",
    "sql_select_limit": "DEFAULT",
}
"""Names that MariaDB and MySQL have in common."""

_TRANSACTIONS = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE"

_HEADER = 64
"""Bytes of a packet beside the statement, amply."""

_BESIDE = 16_384
"""Bytes of a statement beside the JSON of a refused row, amply."""


class Session(pymysql.Connection):
    """A connection without autocommit, in UTF-8."""

    def __init__(self, **address: Any) -> None:
        self.statement_bytes = 0
        """The longest statement that the server takes. After a longer one it ends the connection."""
        super().__init__(
            charset="utf8mb4", autocommit=False, cursorclass=_Cursor,
            client_flag=CLIENT.FOUND_ROWS,  # else an update to equal values counts no row
            **address,
        )  # fmt: skip

    def connect(self, sock: Any = None) -> None:
        """Connect, and set what the sink relies on."""
        super().connect(sock)
        try:
            self._settle()
        except BaseException:
            self.close()
            raise

    def _settle(self) -> None:
        with Cursor(self) as cursor:
            cursor.execute("SET " + ", ".join(f"SESSION {name} = {value}" for name, value in _SETTINGS.items()))
            cursor.execute(_TRANSACTIONS)
            cursor.execute("SELECT @@max_allowed_packet")
            ((most,),) = cursor.fetchall()
        self.statement_bytes = most - _HEADER

    def takes(self, text: str) -> bool:
        """Whether the server takes a statement with the JSON of a refused row."""
        return len(self.escape(text).encode()) < self.statement_bytes - _BESIDE


class _Cursor(Cursor):
    """Splits many rows into statements that the server takes."""

    def __init__(self, connection: Session) -> None:
        super().__init__(connection)
        self._most = connection.statement_bytes
        self.max_stmt_length = min(Cursor.max_stmt_length, self._most)  # type: ignore[misc]

    def execute(self, query: Any, args: Any = None) -> int:
        """Run a statement.

        Raises:
            SinkRefused: it is longer than the server takes, since a single row is.
        """
        if args is not None:
            query = self.mogrify(query, args)
        size = len(query.encode(errors="surrogateescape") if isinstance(query, str) else query)
        if size > self._most:
            raise SinkRefused(
                f"a row makes a statement of {size} bytes, and the server takes {self._most} at most: "
                "raise its max_allowed_packet"
            )
        return super().execute(query)
