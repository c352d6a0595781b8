"""Values that are text: one string each, the column `value`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from actorproc.codecs.tables import TableDecoder
from actorproc.rows.casting import check_text


class TextDecoder(TableDecoder):
    """Decodes UTF-8. As a Python object a value is its text; as columns it has one, `value`."""

    format = "text"

    def table(self, values: pa.Array) -> pa.Table:
        text = values.view(pa.string())
        check_text(text)
        return pa.table({"value": text})

    def objects(self, table: pa.Table) -> list[Any]:
        return table.column("value").to_pylist()  # type: ignore[no-any-return]
