"""An object store that answers late: S3's requests to read, over a directory of this machine.

    python -m benchmarks.spark.slow_store DIR --delay-ms 30

Prints its port. The bucket ``store`` is the directory. Each request waits before it is answered, as
many at once as there are connections; bytes go from the file to the socket without passing through
this process. It knows ListObjectsV2, HEAD and GET with a range, and asks for no signature: enough
for pyarrow's client, and no more.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET: Final = "store"
_DATE: Final = "2026-01-01T00:00:00.000Z"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # no delay but the one that is asked for
    root: Path
    delay_s: float

    def do_HEAD(self) -> None:
        time.sleep(self.delay_s)
        path = self._path()
        if path is not None and not path.is_file():
            self._answer(HTTPStatus.NOT_FOUND, 0)
        else:
            self._answer(HTTPStatus.OK, 0 if path is None else path.stat().st_size)

    def do_GET(self) -> None:
        time.sleep(self.delay_s)
        path = self._path()
        if path is None:
            asked = parse_qs(urlsplit(self.path).query)
            body = self._listing(asked.get("prefix", [""])[0], "delimiter" in asked).encode()
            self._answer(HTTPStatus.OK, len(body))
            self.wfile.write(body)
            return
        if not path.is_file():
            self._answer(HTTPStatus.NOT_FOUND, 0)
            return
        size = path.stat().st_size
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "bytes=0-"))
        first = int(found[1]) if found else 0
        last = min(int(found[2]) if found and found[2] else size - 1, size - 1)
        span = f"bytes {first}-{last}/{size}"
        self._answer(HTTPStatus.PARTIAL_CONTENT, last - first + 1, span)
        with path.open("rb") as file:
            self.connection.sendfile(file, first, last - first + 1)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Nobody reads it."""

    def _path(self) -> Path | None:
        """The file that is meant; None for the bucket itself.

        Raises:
            ValueError: it would lie elsewhere.
        """
        _, bucket, *rest = unquote(urlsplit(self.path).path).split("/", 2)
        if bucket != BUCKET or ".." in "/".join(rest).split("/"):
            raise ValueError(f"found {self.path!r}, allowed /{BUCKET}/KEY")
        return self.root / rest[0] if rest and rest[0] else None

    def _listing(self, prefix: str, by_directory: bool) -> str:
        top = self.root / prefix
        files = top.glob("*" if by_directory else "**/*") if top.is_dir() else ()
        contents, common = [], []
        for each in sorted(files):
            key = escape(str(each.relative_to(self.root)))
            if each.is_file():
                contents.append(
                    f"<Contents><Key>{key}</Key><Size>{each.stat().st_size}</Size>"
                    f"<LastModified>{_DATE}</LastModified><ETag>&quot;x&quot;</ETag></Contents>"
                )
            elif by_directory:
                common.append(f"<CommonPrefixes><Prefix>{key}/</Prefix></CommonPrefixes>")
        return (
            '<?xml version="1.0"?><ListBucketResult>'
            f"<Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><IsTruncated>false"
            f"</IsTruncated>{''.join(contents + common)}</ListBucketResult>"
        )

    def _answer(self, status: HTTPStatus, size: int, span: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(size))
        self.send_header("ETag", '"x"')
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        if span:
            self.send_header("Content-Range", span)
        self.end_headers()


@contextmanager
def slow_store(root: Path, delay_s: float) -> Iterator[dict[str, str]]:
    """A server in a process of its own; the options of ``format("rocketmq")`` that reach it."""
    command = [sys.executable, "-m", "benchmarks.spark.slow_store", str(root)]
    process = subprocess.Popen(
        [*command, "--delay-ms", str(delay_s * 1000)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        yield {
            "storage.endpoint": f"http://127.0.0.1:{port}",
            "storage.accessKey": "any", "storage.secretKey": "any", "storage.region": "any",
        }  # fmt: skip
    finally:
        process.kill()
        process.communicate()


def serve() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--delay-ms", type=float, default=30.0)
    given = parser.parse_args()
    _Handler.root, _Handler.delay_s = given.directory.resolve(), given.delay_ms / 1000
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    serve()
