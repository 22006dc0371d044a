"""A server that answers every request with the bytes it is told to."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

REFUSAL = b'{"error": {"code": "busy", "message": "too much", "remedy": "Wait 7 s."}}'
BUSY = b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: %d\r\n\r\n%b" % (len(REFUSAL), REFUSAL)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Listening:
    """Answers every request with the same bytes, and counts connections and requests."""

    def __init__(self, listener: socket.socket, answer: bytes) -> None:
        self._listener, self._answer = listener, answer
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/base"
        self.requests: list[bytes] = []
        self.connections = 0

    def accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        with peer:
            while request := peer.recv(65_536):
                self.requests.append(request)
                peer.sendall(self._answer)


@contextmanager
def listening(answer: bytes) -> Iterator[Listening]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Listening(listener, answer)
        thread = threading.Thread(target=server.accept, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown(socket.SHUT_RDWR)
    thread.join()
