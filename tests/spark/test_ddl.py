"""Spark's own parser of DDL agrees with ours."""

from __future__ import annotations

from typing import Any

import pytest

from actorproc.errors import SchemaError
from actorproc.rows.ddl import schema_to_ddl
from actorproc.rows.output_schema import parse_schema
from tests.rows.test_schema import REFUSED, TAKEN


@pytest.mark.filterwarnings("default")  # Spark's own, of which it has many
def test_spark_parses_the_same_ddl_to_the_same_types(spark: Any) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    for ddl in TAKEN:
        theirs: Any = StructType.fromDDL(ddl)
        ours = parse_schema(ddl)
        assert to_arrow_schema(theirs, timezone="UTC") == ours, ddl
        assert StructType.fromDDL(schema_to_ddl(ours)) == theirs, ddl  # comments included
    for ddl in REFUSED:
        with pytest.raises(SchemaError):
            parse_schema(ddl)
        with pytest.raises(Exception, match=r"."):  # of several kinds, some of them from Java
            StructType.fromDDL(ddl)
