"""`where` of a sink: a SQL expression that DuckDB evaluates over the rows of a delivery. Optional: the extra `sql`."""

from __future__ import annotations

from typing import Any

import orjson
import pyarrow as pa

from actorproc.errors import UsageError
from actorproc.runtime.requirements import how_to_install

_CLOSED: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,  # no files, no network
    "autoload_known_extensions": False,
    "autoinstall_known_extensions": False,
    "allow_unsigned_extensions": False,
    "python_enable_replacements": False,  # no variables of this process
    "threads": 1,
    "lock_configuration": True,
}

_UNSTEADY = (
    "now", "today", "age", "current_", "get_current_", "local", "transaction_timestamp", "pg_", "txid_", "uuid",
    "gen_random_uuid",
)  # fmt: skip
"""How names of functions begin that DuckDB calls steady within a query, and which change from one delivery to the next.
"""

_MOMENTS = frozenset({"now", "today", "tomorrow", "yesterday"})
"""Texts that become the time of the query where they are cast to a time."""


class RowFilter:
    """An expression that is true for some rows, and the same ones whenever a commit is delivered.

    Args:
        schema: of the rows.

    Raises:
        UsageError: the expression is wrong, or DuckDB is not installed.
    """

    def __init__(self, expression: str, schema: pa.Schema) -> None:
        try:
            import duckdb  # an extra
        except ImportError:
            raise UsageError(f"where needs DuckDB: {how_to_install('sql')}") from None
        self._expression, self._error = expression, duckdb.Error
        self._row = "_row"
        while self._row in schema.names:
            self._row += "_"
        self._connection = duckdb.connect(":memory:", config=_CLOSED)
        self._check_is_steady()
        self._check_is_boolean(schema)
        self.indexes(schema.empty_table())

    def indexes(self, rows: pa.Table) -> pa.Int64Array:
        """The indexes of the rows for which the expression is true, in order. CPU-heavy.

        Raises:
            UsageError: it cannot be evaluated for these rows.
        """
        numbered = rows.append_column(self._row, pa.array(range(rows.num_rows), pa.int64()))
        cursor = self._connection.cursor()
        try:
            matching = cursor.from_arrow(numbered).filter(f"TRY({self._expression}\n)")
            found = matching.project(self._row).order(self._row).to_arrow_table()
        except self._error as error:
            raise self._wrong(str(error)) from None
        finally:
            cursor.close()
        return found[self._row].combine_chunks()

    def _check_is_boolean(self, schema: pa.Schema) -> None:
        cursor = self._connection.cursor()
        try:
            types = cursor.from_arrow(schema.empty_table()).project(self._expression).types
        except self._error as error:
            raise self._wrong(str(error)) from None
        finally:
            cursor.close()
        if [str(kind) for kind in types] != ["BOOLEAN"]:
            raise self._wrong(f"it is {', '.join(map(str, types))}, not boolean")

    def _check_is_steady(self) -> None:
        parsed = self._query("SELECT json_serialize_sql(?)", f"SELECT 1 FROM x WHERE ({self._expression}\n)")[0][0]
        tree = orjson.loads(parsed)
        if tree.get("error"):
            raise self._wrong(tree.get("error_message", "it is no expression"))
        names, kinds = set[str](), set[str]()
        _collect(tree, names, kinds)
        if "SUBQUERY" in kinds:
            raise self._wrong("it must not contain a query of its own")
        volatile = {
            name
            for (name,) in self._query("SELECT function_name FROM duckdb_functions() WHERE stability = ?", "VOLATILE")
        }
        if found := sorted(name for name in names if name in volatile or name.startswith(_UNSTEADY)):
            raise self._wrong(f"{found[0]} changes from one delivery to the next, and a row may come again")

    def _query(self, statement: str, *values: Any) -> list[Any]:
        cursor = self._connection.cursor()
        try:
            return cursor.execute(statement, values).fetchall()
        except self._error as error:
            raise self._wrong(str(error)) from None
        finally:
            cursor.close()

    def _wrong(self, why: str) -> UsageError:
        return UsageError(f"where = {self._expression}: {' '.join(why.split())}")


_LIKE_COLUMNS = ("current_", "localtime", "today")


def _collect(node: Any, names: set[str], kinds: set[str]) -> None:
    """Names of functions in a parsed expression, and of columns, since `current_date` looks like one."""
    if isinstance(node, dict):
        kinds.add(node.get("class", ""))
        if node.get("class") == "FUNCTION":
            names.add(str(node.get("function_name", "")).lower())
        elif node.get("class") == "CONSTANT" and str(node["value"].get("value", "")).strip().lower() in _MOMENTS:
            names.add(str(node["value"]["value"]).strip().lower())
        elif node.get("class") == "COLUMN_REF" and str(node["column_names"][-1]).startswith(_LIKE_COLUMNS):
            names.add(str(node["column_names"][-1]).lower())
        for value in node.values():
            _collect(value, names, kinds)
    elif isinstance(node, list):
        for value in node:
            _collect(value, names, kinds)
