"""A schema registry on a free port: the documented answers of Confluent's interface, no more.

No package of a registry brings such a server without a Kafka cluster behind it, so this stand-in
answers the three requests that a reader makes, from a table that a test fills.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


class SchemaRegistry:
    """What the server answers from, and what it was asked.

    Attributes:
        asked: the path of each request.
        failures: so many requests are answered with 503 before any other.
        credentials: what the header Authorization has to be, "" for anything.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.failures = 0
        self.credentials = ""
        self.url = ""
        self._schemas: dict[int, dict[str, Any]] = {}
        self._subjects: dict[str, list[int]] = {}

    def register(self, subject: str, schema: str, kind: str = "AVRO", **more: Any) -> int:
        """A new version of a subject; gives its id.

        Args:
            subject: which.
            schema: the text; for PROTOBUF what ``format=serialized`` gives.
            kind: AVRO, JSON or PROTOBUF.
            more: further fields of answers, such as references.
        """
        number = 100 + len(self._schemas)
        self._schemas[number] = {"schema": schema, **more}
        if kind != "AVRO":
            self._schemas[number]["schemaType"] = kind
        self._subjects.setdefault(subject, []).append(number)
        return number

    def answer(self, path: str, authorization: str) -> tuple[int, Any]:
        """The status and the JSON of an answer."""
        self.asked.append(path)
        if self.failures:
            self.failures -= 1
            return 503, {"error_code": 50001, "message": "not now"}
        if self.credentials and authorization != self.credentials:
            return 401, {"error_code": 401, "message": "who are you?"}
        parts = [unquote(part) for part in urlsplit(path).path.split("/") if part]
        if parts[:2] == ["schemas", "ids"] and int(parts[2]) in self._schemas:
            return 200, self._schemas[int(parts[2])]
        if parts[0] == "subjects" and parts[1] in self._subjects:
            versions = self._subjects[parts[1]]
            number = len(versions) if parts[3] == "latest" else int(parts[3])
            if 0 < number <= len(versions):
                found = versions[number - 1]
                named = {"subject": parts[1], "version": number, "id": found}
                return 200, {**named, **self._schemas[found]}
        return 404, {"error_code": 40401, "message": "not found"}


@contextmanager
def schema_registry() -> Iterator[SchemaRegistry]:
    """A registry that answers at ``url`` until the block ends."""
    table = SchemaRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, answer = table.answer(self.path, self.headers.get("Authorization", ""))
            raw = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    table.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield table
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
