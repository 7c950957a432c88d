# SPDX-License-Identifier: Apache-2.0
"""A network between one site and the server that can be cut: an HTTP proxy that passes on bytes, or does not.

gRPC goes through it where `grpc_proxy` says so (CONNECT), with TLS from end to end: it sees ciphertexts only.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading


class Network:
    """Listens on a port of this machine until it is closed.

    Attributes:
        address: for the variable `grpc_proxy`. connections: opened so far.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self._open = threading.Event()
        self._open.set()
        self._closed = False
        self._sockets: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def stall(self) -> None:
        """Pass on nothing in either direction, and close nothing: as a cable that was pulled."""
        self._open.clear()

    def reset(self) -> None:
        """Close all connections and pass on nothing new: as a firewall that was started again."""
        self._open.clear()
        for connection in list(self._sockets):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Pass on everything again, what was held back first."""
        self._open.set()

    def close(self) -> None:
        self._closed = True
        self.reset()
        self._open.set()
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            with contextlib.suppress(OSError):
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with near, contextlib.suppress(OSError, ValueError):
            asked = near.recv(65536)
            self._open.wait()
            host, _, port = asked.split()[1].decode().rpartition(":")
            with socket.create_connection((host, int(port))) as far:
                near.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                self.connections += 1
                self._sockets |= {near, far}
                try:
                    self._pass_on(near, far)
                finally:
                    self._sockets -= {near, far}

    def _pass_on(self, near: socket.socket, far: socket.socket) -> None:
        with selectors.DefaultSelector() as ready:
            ready.register(near, selectors.EVENT_READ, far)
            ready.register(far, selectors.EVENT_READ, near)
            while not self._closed:
                for key, _ in ready.select(timeout=1.0):
                    data = key.fileobj.recv(65536)  # type: ignore[union-attr]
                    self._open.wait()
                    if not data:
                        return
                    key.data.sendall(data)
