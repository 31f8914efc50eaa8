"""A web server on loopback that answers as a test tells it to."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass
class Request:
    """One request as it came in."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]  # names in lower case
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Reply:
    """What the server answers: ``body`` as JSON unless it is bytes."""

    body: Any = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0  # before the answer
    drip_s: float = 0.0  # after every byte


@dataclass
class Service:
    """A running server: its address, and all requests so far."""

    url: str
    requests: list[Request]


@contextmanager
def local_service(answer: Callable[[Request], Reply]) -> Iterator[Service]:
    """Serve ``answer`` on a free port of 127.0.0.1."""
    requests: list[Request] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.command, parts.path, parse_qs(parts.query), headers, body)
            requests.append(request)
            reply = answer(request)
            time.sleep(reply.delay_s)
            content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            self.send_response(reply.status)
            for name, value in {"content-length": str(len(content)), **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            for start in range(0, len(content), 1 if reply.drip_s else max(len(content), 1)):
                try:
                    self.wfile.write(content[start : start + 1] if reply.drip_s else content)
                except ConnectionError:  # whoever asked has gone
                    return
                time.sleep(reply.drip_s)

        do_GET = do_POST

        def log_message(self, *_: Any) -> None:
            """Not on the terminal."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield Service(f"http://127.0.0.1:{server.server_port}", requests)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def in_turn(*replies: Reply) -> Callable[[Request], Reply]:
    """One reply after the other; the last for ever."""
    left = list(replies)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]
