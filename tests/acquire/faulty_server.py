"""A server on this machine that drops connections, lies about lengths, answers errors and sends what is wrong."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote


@dataclass
class Faulty:
    """What a server serves, and what goes wrong: faults of a path are taken one for each request."""

    files: dict[str, bytes] = field(default_factory=dict)
    faults: dict[str, list[str]] = field(default_factory=dict)
    has_tags: bool = True
    requests: Counter[str] = field(default_factory=Counter)
    ranges: list[str] = field(default_factory=list)
    most_at_once: int = 0
    now: int = 0
    url: str = ""
    guard: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def serving(state: Faulty) -> Iterator[Faulty]:
    """Serve while the block runs."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(state))
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(state: Faulty) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            path = unquote(self.path)
            with state.guard:
                state.requests[path] += 1
                state.now += 1
                state.most_at_once = max(state.most_at_once, state.now)
                faults = state.faults.get(path, [])
                fault = faults.pop(0) if faults else ""
            try:
                self._answer(path, fault)
            except (BrokenPipeError, ConnectionResetError):
                pass
            finally:
                with state.guard:
                    state.now -= 1

        def _answer(self, path: str, fault: str) -> None:
            if path not in state.files:
                self.send_error(404)
                return
            if fault.isdigit():
                self.send_response(int(fault))
                self.send_header("Retry-After", "0")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            body, asked = state.files[path], self.headers.get("Range")
            begin = 0
            if asked and fault != "no range":
                state.ranges.append(asked)
                begin = int(asked.removeprefix("bytes=").removesuffix("-"))
                if begin >= len(body):
                    self.send_response(416)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
            wrong = bytes(len(body)) if fault == "wrong bytes" else body
            self._send(wrong[begin:], len(body), begin, fault)

        def _send(self, part: bytes, total: int, begin: int, fault: str) -> None:
            changes: dict[str, Callable[[int], int]] = {
                "too long": lambda n: n + 7,
                "too short": lambda n: n - 7,
            }
            length = changes.get(fault, lambda n: n)(len(part))
            self.send_response(206 if begin else 200)
            if begin:
                self.send_header("Content-Range", f"bytes {begin}-{total - 1}/{total}")
            self.send_header("Content-Length", str(length))
            if state.has_tags:
                self.send_header("ETag", '"1"')
            self.end_headers()
            self.wfile.write(part[: len(part) // 2] if fault == "drop" else part)

    return Handler
