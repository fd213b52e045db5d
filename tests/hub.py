"""Serve the Hub's protocol: models are folders, each at one commit."""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """A Hub with some models.

    models: org/name -> folder; gated: models that need a token; cut: file -> number of bytes after
    which its first download breaks off; ranges: files that were requested from the middle on.
    """

    def __init__(self, models: dict[str, Path]):
        super().__init__(("127.0.0.1", 0), _Answers)
        self.models = models
        self.gated: set[str] = set()
        self.cut: dict[str, int] = {}
        self.ranges: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answers(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/([^/]+)(/.*)?", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if api and api[2] == "revision" and not self._is_refused(api[1], api[3]):
            self._send_json({"id": api[1], "sha": COMMIT, "siblings": []})
        elif api and api[2] == "tree" and not self._is_refused(api[1], api[3]):
            self._send_json(self._tree(api[1]))
        elif file and not self._is_refused(file[1], file[2]):
            self._send_file(self.server.models[file[1]] / file[3])
        elif not api and not file:
            self._send(404, b"", {})

    do_HEAD = do_GET

    def _is_refused(self, name: str, revision: str) -> bool:
        """Return whether a model is missing or gated; if it is, send the error."""
        if name not in self.server.models:
            status, code = 404, "RepoNotFound"
        elif name in self.server.gated:
            status, code = 403, "GatedRepo"
        elif revision not in (COMMIT, "main"):
            status, code = 404, "RevisionNotFound"
        else:
            return False
        self._send(status, b"", {"X-Error-Code": code, "X-Error-Message": code})
        return True

    def _tree(self, name: str) -> list[dict[str, Any]]:
        folder = self.server.models[name]
        entries = []
        for path in sorted(filter(Path.is_file, folder.rglob("*"))):
            entries.append(
                {
                    "type": "file",
                    "path": str(path.relative_to(folder)),
                    "size": path.stat().st_size,
                    "oid": hashlib.sha1(path.read_bytes()).hexdigest(),
                }
            )
        return entries

    def _send_file(self, path: Path) -> None:
        if not path.is_file():
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        content = path.read_bytes()
        headers = {
            "ETag": f'"{hashlib.sha1(content).hexdigest()}"',
            "X-Repo-Commit": COMMIT,
            "Accept-Ranges": "bytes",
        }
        status, start = 200, 0
        requested = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if requested:
            status, start = 206, int(requested[1])
            self.server.ranges.append(path.name)
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        cut = self.server.cut.pop(path.name, None) if self.command == "GET" else None
        self._send(status, content[start:], headers, cut)

    def _send_json(self, answer: Any) -> None:
        self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _send(
        self, status: int, body: bytes, headers: dict[str, str], cut: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[:cut])
            self.close_connection = cut is not None

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(models: dict[str, Path]) -> Iterator[Hub]:
    """Serve a Hub within the context."""
    with Hub(models) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()
