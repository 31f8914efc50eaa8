"""A port in front of a server's, which can be gone and come back in no time, as the server itself is where it is killed."""

from __future__ import annotations

import contextlib
import socket
import threading


class Relay:
    """Hands on what comes in.

    Args:
        behind: port of the server, on this machine.
    """

    def __init__(self, behind: int) -> None:
        self._behind, self._ends = behind, list[socket.socket]()
        self.port = 0  # any
        self.restore()

    def restore(self) -> None:
        """Listen, on the same port as before."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, args=(self._listener,), daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """End all connections, and refuse others."""
        _end(self._listener)
        self._thread.join()
        while self._ends:
            _end(self._ends.pop())

    def _serve(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it was cut
            while True:
                near, far = listener.accept()[0], socket.create_connection(("127.0.0.1", self._behind))
                self._ends += [near, far]
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=_hand_on, args=(source, target), daemon=True).start()


def _hand_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def _end(end: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it was never connected, or the other side was faster
        end.shutdown(socket.SHUT_RDWR)
    end.close()
