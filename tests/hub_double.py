"""A double of the Hugging Face Hub that speaks HTTP on this machine, and fails when told to as the real one does.

As there, a large file is answered with a redirect to another host, and that host must not see the token.
"""

from __future__ import annotations

import hashlib
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

__all__ = ["Fault", "HubDouble", "RepoDouble", "Request"]

TOKEN = "hf_double"
_LFS = (".onnx", ".onnx_data", ".gguf")
_PIECE_BYTES = 1 << 16


@dataclass(frozen=True)
class Fault:
    """What one answer about a file does wrong. The next one is right again, unless there is another fault.

    Attributes:
        status: instead of 200; with a Retry-After for 429.
        cut_after: bytes of the body, after which the connection ends.
        is_reset: it ends with a reset.
        is_wrong: one byte in the middle is changed.
        pause_s: wait before each piece.
        ignores_range: the whole file is sent where a part was asked for.
    """

    status: int = 200
    cut_after: int | None = None
    is_reset: bool = False
    is_wrong: bool = False
    pause_s: float = 0.0
    ignores_range: bool = False


@dataclass
class RepoDouble:
    files: dict[str, bytes]
    card: dict[str, Any] = field(default_factory=lambda: {"license": "apache-2.0"})
    gated: str | bool = False

    @property
    def commit(self) -> str:
        digest = hashlib.sha1(usedforsecurity=False)
        for path, content in sorted(self.files.items()):
            digest.update(path.encode() + content)
        return digest.hexdigest()

    @classmethod
    def of_folder(cls, folder: Path, *, under: str = "", **values: Any) -> RepoDouble:
        """Hold the files of a folder; `under` keeps those below one folder of it, without its name."""
        root = folder / under
        paths = (path for path in sorted(root.rglob("*")) if path.is_file())
        return cls({path.relative_to(root).as_posix(): path.read_bytes() for path in paths}, **values)


@dataclass(frozen=True)
class Request:
    method: str
    host: str
    path: str
    range: str
    token: str


class HubDouble:
    def __init__(self) -> None:
        self.repos: dict[str, RepoDouble] = {}
        self.faults: dict[str, list[Fault]] = {}
        self.api_faults: list[Fault] = []
        self.requests: list[Request] = []
        self.connections: set[socket.socket] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.port = self._server.server_address[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        for connection in list(self.connections):
            with suppress(OSError):  # closed already
                connection.shutdown(socket.SHUT_RDWR)

    def bodies_of(self, name: str) -> list[Request]:
        """Return the requests for the content of a file, by the end of its path."""
        return [request for request in self.requests if request.method == "GET" and request.path.endswith(name)]

    def next_fault(self, name: str) -> Fault:
        faults = next((faults for end, faults in self.faults.items() if name.endswith(end)), [])
        return faults.pop(0) if faults else Fault()


@contextmanager
def running_double() -> Iterator[HubDouble]:
    double = HubDouble()
    try:
        yield double
    finally:
        double.stop()


def _handler_of(double: HubDouble) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            double.connections.add(self.connection)

        def finish(self) -> None:
            double.connections.discard(self.connection)
            with suppress(OSError):  # the other side is gone
                super().finish()

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def _answer(self) -> None:
            path = unquote(urlsplit(self.path).path)
            host = self.headers.get("Host", "").partition(":")[0]
            token = self.headers.get("Authorization", "")
            double.requests.append(Request(self.command, host, path, self.headers.get("Range", ""), token))
            if path.startswith("/cdn/"):
                _, _, repo_id, file = path.split("|")
                self._send_file(double.repos[repo_id].files[file], {}, double.next_fault(file))
            elif path.startswith("/api/models/"):
                self._answer_info(path.removeprefix("/api/models/"))
            elif "/resolve/" in path:
                self._answer_file(path.lstrip("/"))
            else:
                self._fail(404, "")

        def _answer_info(self, path: str) -> None:
            repo_id, _, revision = path.partition("/revision/")
            fault = double.api_faults.pop(0) if double.api_faults else Fault()
            if fault.status != 200:
                return self._fail(fault.status, "")
            repo = double.repos.get(repo_id)
            if repo is None:
                return self._fail(401, "RepoNotFound")
            if revision not in {"", "main", repo.commit}:
                return self._fail(404, "RevisionNotFound")
            siblings = []
            for file, content in repo.files.items():
                entry: dict[str, Any] = {"rfilename": file, "size": len(content), "blobId": _git_sha1(content)}
                if file.endswith(_LFS):
                    sha256 = hashlib.sha256(content).hexdigest()
                    entry["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 130}
                siblings.append(entry)
            info = {
                "_id": "0",
                "id": repo_id,
                "sha": repo.commit,
                "private": False,
                "gated": repo.gated,
                "tags": [],
                "downloads": 0,
                "likes": 0,
                "siblings": siblings,
                "cardData": repo.card,
            }
            self._send(200, json.dumps(info).encode(), {"Content-Type": "application/json"})

        def _answer_file(self, path: str) -> None:
            repo_id, _, rest = path.partition("/resolve/")
            revision, _, file = rest.partition("/")
            repo = double.repos.get(repo_id)
            if repo is None:
                return self._fail(401, "RepoNotFound")
            if repo.gated and self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return self._fail(401, "GatedRepo")
            if revision not in {"main", repo.commit}:
                return self._fail(404, "RevisionNotFound")
            if file not in repo.files:
                return self._fail(404, "EntryNotFound")
            content = repo.files[file]
            headers = {"X-Repo-Commit": repo.commit}
            if file.endswith(_LFS):
                headers |= {
                    "X-Linked-Etag": f'"{hashlib.sha256(content).hexdigest()}"',
                    "X-Linked-Size": str(len(content)),
                    "Location": f"http://localhost:{double.port}/cdn/|x|{repo_id}|{file}",
                }
                return self._send(302, b"", headers)
            headers["ETag"] = f'"{_git_sha1(content)}"'
            return self._send_file(content, headers, double.next_fault(file) if self.command == "GET" else Fault())

        def _send_file(self, content: bytes, headers: Mapping[str, str], fault: Fault) -> None:
            if fault.status != 200:
                return self._fail(fault.status, "")
            if fault.is_wrong:
                middle = len(content) // 2
                content = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
            begin = 0
            wanted = self.headers.get("Range", "")
            if wanted and not fault.ignores_range:
                begin = int(wanted.removeprefix("bytes=").partition("-")[0])
                if begin >= len(content):
                    return self._fail(416, "")
                headers = {**headers, "Content-Range": f"bytes {begin}-{len(content) - 1}/{len(content)}"}
            self._send(206 if begin else 200, content[begin:], headers, fault)

        def _send(self, status: int, body: bytes, headers: Mapping[str, str], fault: Fault = Fault()) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "HEAD":
                return
            try:
                self._send_body(body, fault)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        def _send_body(self, body: bytes, fault: Fault) -> None:
            end = len(body) if fault.cut_after is None else fault.cut_after
            for at in range(0, end, _PIECE_BYTES):
                if fault.pause_s:
                    time.sleep(fault.pause_s)
                self.wfile.write(body[at : min(at + _PIECE_BYTES, end)])
            self.wfile.flush()
            if fault.cut_after is not None:
                if fault.is_reset:
                    time.sleep(0.2)  # a reset throws away what the other side has not read yet
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.connection.close()
                else:
                    self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True

        def _fail(self, status: int, code: str) -> None:
            headers = {"X-Error-Code": code} if code else {}
            if status == 429:
                headers["Retry-After"] = "0"
            self._send(status, b"", headers)

    return Handler


def _git_sha1(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()
