"""The engine of ClickHouse (the package `chdb`) behind HTTP: as much as clickhouse-connect asks, without users.

    PYTHON-WITH-CHDB double.py PORT FOLDER

It runs in an environment of its own, so it imports nothing of ours. `/lose?count=N`: the next N inserts are applied,
and their connections are closed instead of an answer.
"""

import gzip
import re
import sys
import tempfile
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from urllib.parse import parse_qsl, urlsplit

OF_HTTP = {
    "query", "session_id", "session_timeout", "session_check", "database", "query_id", "default_format", "compress",
    "enable_http_compression", "user", "password", "client_protocol_version", "role", "wait_end_of_query",
    "buffer_size", "http_headers_progress_interval_ms", "send_progress_in_http_headers",
    "cancel_http_readonly_queries_on_client_close",
}  # fmt: skip
"""Parameters of a request that are no settings of the query."""

INSERT = re.compile(r"\s*INSERT\b", re.IGNORECASE)
TARGET = re.compile(r"INSERT\s+INTO\s+(?:TABLE\s+)?(?:`[^`]*`|[^\s(`]+)(?:\.`[^`]*`)?\s*(?:\([^)]*\))?", re.IGNORECASE)
FORMAT = re.compile(r"\bFORMAT\s+(\w+)\s*$", re.IGNORECASE)


def literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


class Engine:
    """The one session of this process."""

    def __init__(self, folder: str) -> None:
        from chdb import session  # type: ignore[import-not-found]  # in this process's environment

        self._session = session.Session(folder)
        self._lock = Lock()
        self.lose = 0

    def run(self, sql: str, data: bytes, given: dict[str, str]) -> tuple[bytes, str]:
        """The answer, and its format."""
        settings = {name: value for name, value in given.items() if name not in OF_HTTP and name[:6] != "param_"}
        said = ", ".join(
            f"{name} = {value if re.fullmatch(r'-?[0-9.]+', value) else literal(value)}"
            for name, value in settings.items()
        )
        with self._lock:
            for name, value in given.items():
                if name.startswith("param_"):
                    self._session.query(f"SET {name} = {literal(value)}")
            if given.get("database"):
                self._session.query(f"USE `{given['database']}`")
            form = "TabSeparated"
            if (found := FORMAT.search(sql)) is not None:
                form, sql = found[1], sql[: found.start()].strip()
            if INSERT.match(sql) and data:
                return self._insert(sql, data, said, form), form
            if said and re.match(r"\s*(SELECT|WITH)\b", sql, re.IGNORECASE) and " settings " not in sql.lower():
                sql += f" SETTINGS {said}"
            answer = self._session.query(sql, form)
            return (answer.bytes() or b"") if answer is not None else b"", form

    def _insert(self, sql: str, data: bytes, said: str, form: str) -> bytes:
        target = TARGET.match(sql)
        assert target is not None, sql
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            settings = f" SETTINGS {said}" if said else ""
            self._session.query(
                f"{target[0]} FROM INFILE {literal(file.name)} COMPRESSION 'none'{settings} FORMAT {form}"
            )
        return b""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        parts = urlsplit(self.path)
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        data = self._body()
        if parts.path == "/lose":
            ENGINE.lose = int(given["count"])
            return self._answer(200, b"")
        if parts.path == "/ping":
            return self._answer(200, b"Ok.\n")
        sql = given.get("query", "")
        if not sql:
            head, line, rest = data.partition(b"\n")
            is_insert = INSERT.match(head.decode(errors="replace")) and line
            sql, data = (head.decode(), rest) if is_insert else (data.decode(), b"")
        sql = sql.strip().rstrip(";")
        try:
            body, form = ENGINE.run(sql, data, given)
        except Exception as error:  # noqa: BLE001  # what a query raises is its answer
            found = re.search(r"Code: (\d+)", str(error))
            return self._answer(500, str(error).encode(), {"X-ClickHouse-Exception-Code": found[1] if found else "1"})
        if INSERT.match(sql) and data and ENGINE.lose:
            ENGINE.lose -= 1
            self.close_connection = True
            self.connection.shutdown(2)
            return None
        told = {"X-ClickHouse-Format": form, "X-ClickHouse-Summary": "{}", "X-ClickHouse-Timezone": "UTC"}
        return self._answer(200, body, {**told, "X-ClickHouse-Query-Id": given.get("query_id", "q")})

    do_GET = do_POST  # noqa: N815

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            found = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                found += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            found = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        packed = self.headers.get("Content-Encoding")
        return gzip.decompress(found) if packed == "gzip" else zlib.decompress(found) if packed == "deflate" else found

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    Path(sys.argv[2]).mkdir(exist_ok=True)
    ENGINE = Engine(sys.argv[2])
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
