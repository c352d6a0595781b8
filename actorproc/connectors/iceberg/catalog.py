"""Opens the catalog, and the table in it: creates it, or adds the columns that it lacks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pyarrow as pa
import pyarrow.types as pt
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    BadRequestError,
    ForbiddenError,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NotInstalledError,
    OAuthError,
    TableAlreadyExistsError,
    UnauthorizedError,
    ValidationError,
)
from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.transforms import IdentityTransform

from actorproc.connectors.iceberg.options import IcebergOptions
from actorproc.sinks.protocol import SinkRefused

logging.getLogger("pyiceberg.io.pyarrow").setLevel(logging.ERROR)  # a line for each column without bounds, per file

PARTITION = pa.field("partition", pa.string())
"""Column of the partition. It is not in the files; readers take it from the metadata."""

_FIRST_SPEC = 1000  # id of a partition field, as Iceberg counts
_FORMAT = 2

_CREATED = {
    "format-version": str(_FORMAT),
    "gc.enabled": "false",  # files are ours to delete: no procedure of others may
    TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
    TableProperties.METADATA_PREVIOUS_VERSIONS_MAX: "100",
}


def open_catalog(uri: str, options: IcebergOptions) -> Catalog:
    """The catalog that pyiceberg finds at this URI; `glue`: that of the AWS account."""
    given = options.properties()
    if uri == "glue":
        return load_catalog("glue", type="glue", **given)
    return load_catalog("actorproc", uri=_with_password(uri, options.password), **given)


def _with_password(uri: str, password: str | None) -> str:
    if password is None:
        return uri
    from sqlalchemy import make_url

    return make_url(uri).set(password=password).render_as_string(hide_password=False)


def open_table(catalog: Catalog, identifier: tuple[str, ...], schema: pa.Schema | None, location: str | None) -> Table:
    """The table with all columns of the schema.

    Args:
        schema: of the rows, with `_sequence`; None: nothing is created or changed.

    Raises:
        SinkRefused: there is no table, or it cannot have these columns.
    """
    try:
        table = catalog.load_table(identifier)
    except NoSuchTableError:
        if schema is None:
            raise SinkRefused(f"there is no table {'.'.join(identifier)}") from None
        table = _created(catalog, identifier, table_schema(schema), location)
    check_layout(table)
    if schema is not None:
        _evolve(table, table_schema(schema))
    return table


def check_table(catalog: Catalog, identifier: tuple[str, ...], schema: pa.Schema | None) -> None:
    """Try what `open_table` would do, and change nothing.

    Args:
        schema: of the rows, with `_sequence`; None: columns are not tried.

    Raises:
        SinkRefused: the table cannot have these columns.
    """
    wanted = None if schema is None else table_schema(schema)
    try:
        table = catalog.load_table(identifier)
    except NoSuchTableError:
        catalog.namespace_exists(identifier[:-1])  # it would be created: at least the catalog answers
        return
    check_layout(table)
    if wanted is not None:
        _with_columns(table.transaction(), table, wanted)  # never committed


_REFUSED = (
    UnauthorizedError, ForbiddenError, OAuthError, BadRequestError, NotInstalledError, ModuleNotFoundError,
    NoSuchNamespaceError,
)  # fmt: skip
_LASTING = (
    "does not exist", "authentication failed", "no password supplied", "no pg_hba.conf entry", "permission denied",
    "Can't load plugin", "Could not parse SQLAlchemy URL", "unable to open database file", "No module named",
    "readonly database", "Could not initialize Catalog", "Could not infer the catalog type",
)  # fmt: skip
"""In what a database, or SQLAlchemy, answers that will say the same again."""


@contextmanager
def refused_for_good() -> Iterator[None]:
    """Raises SinkRefused for what a catalog would refuse again, such as a login."""
    try:
        yield
    except SinkRefused:
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        if isinstance(error, _REFUSED) or any(part in text for part in _LASTING):
            raise SinkRefused(f"the catalog refuses: {text}") from error
        raise


def table_schema(schema: pa.Schema) -> Schema:
    """The columns of the table. All may be null: older files lack columns that came later.

    Raises:
        SinkRefused: Iceberg has no such type.
    """
    if PARTITION.name in schema.names:
        raise SinkRefused(f"the output has a column {PARTITION.name!r}, which is the partition in the table")
    columns = pa.schema([*(pa.field(field.name, _nullable(field.type)) for field in schema), PARTITION])
    try:
        return assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(columns))
    except (TypeError, ValueError) as error:
        raise SinkRefused(f"the table cannot have these columns: {error}") from None


def _nullable(kind: pa.DataType) -> pa.DataType:
    if pt.is_struct(kind):
        return pa.struct([pa.field(field.name, _nullable(field.type)) for field in kind])
    if pt.is_map(kind):
        return pa.map_(_nullable(kind.key_type), _nullable(kind.item_type))
    if pt.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _nullable(kind.value_type)))
    return kind


def _created(catalog: Catalog, identifier: tuple[str, ...], schema: Schema, location: str | None) -> Table:
    source = schema.find_field(PARTITION.name).field_id
    field = PartitionField(source, _FIRST_SPEC, IdentityTransform(), PARTITION.name)
    properties = {**_CREATED, TableProperties.DEFAULT_NAME_MAPPING: schema.name_mapping.model_dump_json()}
    with suppress(NamespaceAlreadyExistsError):
        catalog.create_namespace(identifier[:-1])
    try:
        return catalog.create_table(
            identifier, schema, location=location, partition_spec=PartitionSpec(field), properties=properties
        )
    except TableAlreadyExistsError:  # by another host
        return catalog.load_table(identifier)


def _evolve(table: Table, wanted: Schema) -> None:
    """Add the columns that the table lacks, and what its files need to be read by name."""
    with table.transaction() as transaction:
        _with_columns(transaction, table, wanted)


def _with_columns(transaction: Transaction, table: Table, wanted: Schema) -> None:
    try:
        if table.metadata.name_mapping() is None:
            mapping = table.schema().name_mapping.model_dump_json()
            transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})
        if table.properties.get("gc.enabled") != "false":
            transaction.set_properties({"gc.enabled": "false"})
        with transaction.update_schema() as update:
            update.union_by_name(wanted)
    except (ValidationError, TypeError, ValueError) as error:
        raise SinkRefused(f"table {'.'.join(table.name())} cannot have the columns of the output: {error}") from None


def check_layout(table: Table) -> None:
    """Check that our files can be in the table as it is laid out now.

    Raises:
        SinkRefused: they cannot.
    """
    name = ".".join(table.name())
    if table.format_version != _FORMAT:
        raise SinkRefused(f"table {name} has format version {table.format_version}: actorproc writes version {_FORMAT}")
    if [(field.name, str(field.transform)) for field in table.spec().fields] != [(PARTITION.name, "identity")]:
        fields = ", ".join(field.name for field in table.spec().fields)
        now = f"partitioned by {fields}" if fields else "not partitioned"
        raise SinkRefused(
            f"table {name} is {now}: its files are those of the output, so it must be partitioned by the column "
            "partition alone"
        )
