"""Unmodified readers of Delta tables, each as a function from a place to an Arrow table."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import deltalake
import duckdb
import polars as pl
import pyarrow as pa

from tests.servers import S3Server


@dataclass(frozen=True)
class Place:
    """The folder of a table. `server`: of S3."""

    url: str
    server: S3Server | None = None
    storage: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def on(cls, url: str, server: S3Server | None) -> Place:
        if server is None:
            return cls(url)
        options = {
            "AWS_ENDPOINT_URL": server.endpoint, "AWS_ACCESS_KEY_ID": server.access_key,
            "AWS_SECRET_ACCESS_KEY": server.secret_key, "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true",
        }  # fmt: skip
        return cls(url, server, options)


def delta_rs(place: Place, condition: str | None = None) -> pa.Table:
    table = deltalake.DeltaTable(place.url, storage_options=dict(place.storage))
    if condition is None:
        return pa.table(deltalake.QueryBuilder().register("t", table).execute("SELECT * FROM t"))
    return pa.table(deltalake.QueryBuilder().register("t", table).execute(f"SELECT * FROM t WHERE {condition}"))


def polars(place: Place, condition: str | None = None) -> pa.Table:
    frame = pl.scan_delta(place.url, storage_options=dict(place.storage) or None)
    return (frame if condition is None else frame.filter(in_polars(condition))).collect().to_arrow()


def in_polars(condition: str) -> pl.Expr:
    at = re.fullmatch(r"ts (\S+) TIMESTAMP '(.*)'", condition)  # polars has no literals with a zone
    if at is None:
        return pl.sql_expr(condition)
    compare = {"=": pl.col("ts").eq, ">=": pl.col("ts").ge}
    return compare[at[1]](pl.lit(datetime.fromisoformat(at[2]).replace(tzinfo=UTC)))


def duck(place: Place, condition: str | None = None) -> pa.Table:
    with duckdb.connect() as connection:
        for name in ("delta", "httpfs"):
            folder = Path(sysconfig.get_paths()["purelib"]) / f"duckdb_extension_{name}"
            connection.execute(f"LOAD '{next(folder.rglob('*.duckdb_extension'))}'")
        if (server := place.server) is not None:
            connection.execute(
                f"CREATE SECRET (TYPE s3, KEY_ID '{server.access_key}', SECRET '{server.secret_key}', "
                f"REGION 'us-east-1', ENDPOINT '{server.endpoint.partition('://')[2]}', URL_STYLE 'path', "
                "USE_SSL false)"
            )
        connection.execute("SET TimeZone = 'UTC'")
        where = "" if condition is None else f"WHERE {condition}"
        return connection.execute(f"SELECT * FROM delta_scan('{place.url}') {where}").to_arrow_table()


READERS: Mapping[str, Callable[..., pa.Table]] = {"delta-rs": delta_rs, "polars": polars, "duckdb": duck}


def same(found: pa.Table, expected: pa.Table) -> bool:
    """Whether both have the same rows, in any order, to the sign of zero."""
    assert set(found.column_names) == set(expected.column_names)
    return texts(found.select(expected.column_names).cast(expected.schema)) == texts(expected)


def texts(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))
