"""Web servers on this machine that serve traces well, or badly."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Say nothing of clients that go away."""


class serving:  # noqa: N801 - read as a verb
    """A web server with one handler for as long as the context lasts."""

    def __init__(self, handler: Callable[..., BaseHTTPRequestHandler]) -> None:
        self.server = _Server(("127.0.0.1", 0), handler)

    def __enter__(self) -> str:
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class Folder(SimpleHTTPRequestHandler):
    """Serves a folder, with index pages."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def answering(status: int) -> type[BaseHTTPRequestHandler]:
    """A handler that answers every request with one status."""

    class Answer(Folder):
        def do_GET(self) -> None:
            self.send_error(status)

        do_HEAD = do_GET  # noqa: N815

    return Answer


def sending(
    pieces: Callable[[], Iterable[bytes]],
    length: int | None = None,
    *,
    asked: list[str] | None = None,
    ranges: bool = False,
    chunked: bool = False,
    reset: bool = False,
    silent: bool = False,
) -> type[BaseHTTPRequestHandler]:
    """A handler that sends some pieces, whatever it is asked for, and closes the connection.

    Args:
        pieces: Makes them, for each request.
        length: The length that it promises, if any.
        asked: Takes down of each request the range that it asks for, "" for all.
        ranges: Say that ranges can be asked for.
        chunked: Send each piece as a chunk, and at the end no chunk that ends them.
        reset: Break the connection off instead of closing it.
        silent: Send nothing but the pieces, no answer before them.
    """

    class Sender(Folder):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if asked is not None:
                asked.append(self.headers.get("Range", ""))
            if not silent:
                self.answer()
            for piece in pieces():
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
            if reset:
                self.wfile.flush()
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()

        def answer(self) -> None:
            self.send_response(200)
            for name, wanted, value in (
                ("Content-Length", length is not None, str(length)),
                ("Accept-Ranges", ranges, "bytes"),
                ("Transfer-Encoding", chunked, "chunked"),
                ("Connection", True, "close"),
            ):
                if wanted:
                    self.send_header(name, value)
            self.end_headers()

    return Sender
