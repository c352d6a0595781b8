"""Parses Spark's DDL for columns ("carrier string, minutes double NOT NULL") into Arrow types, and writes it.

Grammar: `colTypeList` of Spark's SqlBaseParser.g4, https://spark.apache.org/docs/latest/sql-ref-datatypes.html
"""

from __future__ import annotations

import re
from typing import NamedTuple

import pyarrow as pa

from actorproc.errors import SchemaError

COMMENT = b"comment"
"""Key of a column's comment in an Arrow field's metadata."""

_UTC = pa.timestamp("us", "UTC")
_NTZ = pa.timestamp("us")

_TYPES = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": _UTC,
    "timestamp_ltz": _UTC,
    "timestamp_ntz": _NTZ,
}
_DECIMALS = ("decimal", "dec", "numeric")
_NESTED = ("array", "map", "struct")
_NAMES = {  # each type's first name
    kind: name
    for name, kind in reversed(_TYPES.items())
    if name not in ("byte", "short", "integer", "long", "real", "timestamp_ltz")
}

ALLOWED = (
    "boolean, tinyint, smallint, int, bigint, float, double, decimal(p,s), string, binary, date, timestamp, "
    "timestamp_ntz, array<...>, map<..., ...>, struct<name: ..., ...>"
)

_TOKEN = re.compile(
    r"""(?P<space> \s+ | --[^\n]* | /\*.*?\*/ )
      | (?P<quoted> ` (?: [^`] | `` )* ` )
      | (?P<text> ' (?: [^'\\] | \\. | '' )* ' | " (?: [^"\\] | \\. | "" )* " )
      | (?P<word> [A-Za-z0-9_]+ )
      | (?P<mark> [<>(),:] )""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPED = r"\\(u[0-9A-Fa-f]{4}|.)"
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "0": "\0", "Z": "\x1a", "%": r"\%", "_": r"\_"}
_PLAIN = re.compile(r"(?=.*[A-Za-z_])(?![0-9]+[eEdDfFlLsSyY])[A-Za-z0-9_]+")  # 1e5 and 10L are numbers to Spark


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


def parse_ddl(ddl: str) -> list[pa.Field]:
    """The columns of a DDL string.

    Raises:
        SchemaError: the DDL does not parse. Names the line and position (from 1), the word there and the allowed words.
    """
    return _Parser(ddl).columns()


def schema_to_ddl(schema: pa.Schema, *, exact: bool = False) -> str:
    """The schema as DDL that `parse_ddl` parses to the same columns.

    Args:
        exact: Spark parses it to the same columns, too, whatever its session settings for `timestamp` and keywords.
    """
    return ", ".join(_column_ddl(field, " ", exact) for field in schema)


def type_ddl(kind: pa.DataType, *, exact: bool = False) -> str:
    """An Arrow type as DDL, or in Arrow's notation if Spark does not have it. `exact`: see `schema_to_ddl`."""
    if kind in _NAMES:
        return "timestamp_ltz" if exact and kind == _UTC else _NAMES[kind]
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(_column_ddl(field, ': ', exact) for field in kind)}>"
    if pa.types.is_map(kind):
        return f"map<{type_ddl(kind.key_type, exact=exact)}, {type_ddl(kind.item_type, exact=exact)}>"
    if pa.types.is_list(kind):
        return f"array<{type_ddl(kind.value_type, exact=exact)}>"
    return str(kind)


def _column_ddl(field: pa.Field, between: str, exact: bool) -> str:
    plain = not exact and _PLAIN.fullmatch(field.name)
    name = field.name if plain else "`" + field.name.replace("`", "``") + "`"
    required = "" if field.nullable else " NOT NULL"
    comment = (field.metadata or {}).get(COMMENT, b"").decode().replace("\\", "\\\\").replace("'", "\\'")
    return f"{name}{between}{type_ddl(field.type, exact=exact)}{required}" + (
        f" COMMENT '{comment}'" if comment else ""
    )


class _Parser:
    def __init__(self, ddl: str) -> None:
        self._ddl = ddl
        self._tokens = self._split()
        self._next = 0

    def columns(self) -> list[pa.Field]:
        if self._is("end"):
            return []
        wrapped = self._is("word", "struct") and self._tokens[1].text == "<"  # as simpleString() prints a schema
        fields = self._struct() if wrapped else self._fields()
        if not self._is("end"):
            raise self._unexpected("',' or the end" if not wrapped else "the end")
        return fields

    def _split(self) -> list[_Token]:
        tokens: list[_Token] = []
        at = 0
        while at < len(self._ddl):
            match = _TOKEN.match(self._ddl, at)
            if match is None:
                raise self._wrong(at, f"{self._ddl[at]!r} is not allowed here; other names go in `backquotes`")
            if match.lastgroup != "space":
                tokens.append(_Token(str(match.lastgroup), match[0], at))
            at = match.end()
        return [*tokens, _Token("end", "", at)]

    def _fields(self) -> list[pa.Field]:
        fields = [self._field()]
        while self._take("mark", ","):
            fields.append(self._field())
        return fields

    def _field(self) -> pa.Field:
        name = self._name()
        self._take("mark", ":")
        kind = self._type()
        required = self._take("word", "not")
        if required and not self._take("word", "null"):
            raise self._unexpected("NULL")
        comment = None
        if self._take("word", "comment"):
            if not self._is("text"):
                raise self._unexpected("a 'quoted text'")
            comment = _unquoted(self._advance().text)
        return pa.field(name, kind, nullable=not required, metadata={COMMENT: comment} if comment else None)

    def _name(self) -> str:
        token = self._advance()
        if token.kind == "quoted":
            return token.text[1:-1].replace("``", "`")
        if token.kind == "word" and _PLAIN.fullmatch(token.text):
            return token.text
        raise self._unexpected(
            "the name of a column (anything but letters, digits and '_' goes in `backquotes`)", token
        )

    def _type(self) -> pa.DataType:
        token = self._advance()
        word = token.text.lower()
        if token.kind != "word":
            raise self._unexpected(f"a type: {ALLOWED}", token)
        if word in _NESTED:
            self._next -= 1
            return self._nested(word)
        if word in _DECIMALS:
            return self._decimal(token)
        if word not in _TYPES:
            raise self._wrong(token.at, f"there is no type {token.text!r}; allowed: {ALLOWED}")
        return self._zone(word) if word == "timestamp" else _TYPES[word]

    def _zone(self, word: str) -> pa.DataType:
        for phrase, kind in (("without time zone", _NTZ), ("with local time zone", _UTC)):
            words = phrase.split()
            ahead = [token.text.lower() for token in self._tokens[self._next : self._next + len(words)]]
            if ahead == words:
                self._next += len(words)
                return kind
        return _TYPES[word]

    def _nested(self, word: str) -> pa.DataType:
        if word == "struct":
            return pa.struct(self._struct())
        self._advance()
        self._expect("<")
        if word == "array":
            kind = pa.list_(pa.field("element", self._type()))
        else:
            key = self._type()
            self._expect(",")
            kind = pa.map_(key, self._type())
        self._expect(">")
        return kind

    def _struct(self) -> list[pa.Field]:
        self._advance()
        self._expect("<")
        if self._is("mark", ">"):
            raise self._wrong(self._tokens[self._next].at, "a struct needs a field: Parquet cannot hold an empty one")
        fields = self._fields()
        self._expect(">")
        return fields

    def _decimal(self, token: _Token) -> pa.DataType:
        precision, scale = 10, 0
        if self._take("mark", "("):
            precision = self._number()
            if self._take("mark", ","):
                scale = self._number()
            self._expect(")")
        if not 1 <= precision <= 38 or not 0 <= scale <= precision:
            raise self._wrong(
                token.at, f"decimal({precision},{scale}): 1 to 38 digits, of which at most all after the point"
            )
        return pa.decimal128(precision, scale)

    def _number(self) -> int:
        token = self._advance()
        if not (token.kind == "word" and token.text.isdigit()):
            raise self._unexpected("a number", token)
        return int(token.text)

    def _is(self, kind: str, text: str | None = None) -> bool:
        token = self._tokens[self._next]
        return token.kind == kind and (text is None or token.text.lower() == text)

    def _take(self, kind: str, text: str) -> bool:
        found = self._is(kind, text)
        self._next += found
        return found

    def _advance(self) -> _Token:
        token = self._tokens[self._next]
        self._next += token.kind != "end"
        return token

    def _expect(self, mark: str) -> None:
        if not self._take("mark", mark):
            raise self._unexpected(repr(mark))

    def _unexpected(self, expected: str, token: _Token | None = None) -> SchemaError:
        token = token or self._tokens[self._next]
        found = "the schema ends" if token.kind == "end" else f"found {token.text!r}"
        return self._wrong(token.at, f"{found} where {expected} is expected")

    def _wrong(self, at: int, why: str) -> SchemaError:
        if "\n" not in self._ddl:
            return SchemaError(f"output schema {self._ddl!r}, position {at + 1}: {why}")
        at = min(at, len(self._ddl.rstrip()))  # the end of the last word
        number, begins = self._ddl.count("\n", 0, at), self._ddl.rfind("\n", 0, at) + 1
        line = self._ddl[begins:].partition("\n")[0]
        position = at - begins - (len(line) - len(line.lstrip())) + 1
        return SchemaError(f"output schema, line {number + 1}, {line.strip()!r}, position {position}: {why}")


def _unquoted(literal: str) -> str:
    def plain(match: re.Match[str]) -> str:
        code = match[1] or literal[0]  # a quote is also written twice
        return chr(int(code[1:], 16)) if len(code) == 5 else _ESCAPES.get(code, code)

    return re.sub(_ESCAPED + f"|{literal[0] * 2}", plain, literal[1:-1], flags=re.DOTALL)
