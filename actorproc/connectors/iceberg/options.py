"""Options of an Iceberg table, and the properties of its catalog as pyiceberg names them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, model_validator

from actorproc.errors import UsageError
from actorproc.sinks.tables.options import TableOptions

_CATALOG = ("warehouse", "token", "credential", "scope", "prefix", "init_catalog_tables")
"""Properties of catalogs without a dot in their names."""


class IcebergOptions(TableOptions):
    """Options of an Iceberg table. Properties of the catalog have a dot in their names, such as `s3.endpoint`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    table: str | None = Field(None, description="NAMESPACE.TABLE. Default: `default`, and the processor.")
    location: str | None = Field(None, description="Where a new table keeps its metadata. Default: the catalog's.")
    password: str | None = Field(None, repr=False, description="Of a SQL catalog, or `@FILE`.")
    versions: Annotated[float, Field(ge=3600)] = Field(
        3600.0,
        description="Seconds for which versions of the table are kept, at least 1h: each slows all transactions down.",
    )

    @model_validator(mode="after")
    def _check_properties(self) -> IcebergOptions:
        for name in self.model_extra or {}:
            if "." not in name and name not in _CATALOG:
                raise UsageError(
                    f"Iceberg sinks have no option {name!r}; properties of a catalog are {', '.join(_CATALOG)}, and "
                    "those with a dot, as pyiceberg names them"
                )
        return self

    def properties(self) -> dict[str, str]:
        """Of the catalog."""
        return {name: _text(value) for name, value in (self.model_extra or {}).items()}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
