"""Faulty peers at the daemon's address: absent ones, and ones that hang up, send rubbish, are silent, refuse, are slow.

Each counts what it did, so that a test can assert that the fault happened.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable

# HTTP/2 frame types and flags (RFC 9113).
HEADERS, SETTINGS = 1, 4
ACK, END_STREAM, END_HEADERS = 1, 1, 4
PREFACE_BYTES = 24
PERMISSION_DENIED = b"7"


class Peer:
    """Listens on a separate port and handles every connection in the same way."""

    def __init__(self) -> None:
        self.connections = 0
        self.heard_bytes = 0
        self.answers = 0
        self._open: list[socket.socket] = []
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._begin()

    def _begin(self) -> None:
        self._socket.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self.connections += 1
                self._open.append(connection)
                threading.Thread(target=self._quietly, args=(connection,), daemon=True).start()

    def _quietly(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError), connection:
            self.treat(connection)

    def treat(self, connection: socket.socket) -> None:
        """Handles one connection."""

    def happened(self) -> bool:
        """Whether a client met this fault."""
        return self.connections > 0

    def stop(self) -> None:
        for connection in [self._socket, *self._open]:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


class Absent(Peer):
    """The port is bound but not listening: the system refuses connections."""

    def _begin(self) -> None:
        pass

    def happened(self) -> bool:
        with contextlib.suppress(ConnectionRefusedError):
            socket.create_connection(self._socket.getsockname()).close()
            return False
        return True


class HangsUp(Peer):
    """Resets every connection at once."""

    def treat(self, connection: socket.socket) -> None:
        # Linger of 0 s: close sends a reset.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class Rubbish(Peer):
    """Answers with endless bytes that are not HTTP/2."""

    def treat(self, connection: socket.socket) -> None:
        while True:
            self.heard_bytes += len(connection.recv(4096))
            connection.sendall(bytes((7 * place + self.answers) % 256 for place in range(4096)))
            self.answers += 1

    def happened(self) -> bool:
        return self.answers > 0


class Silent(Peer):
    """Reads everything and never answers."""

    def treat(self, connection: socket.socket) -> None:
        while heard := connection.recv(65536):
            self.heard_bytes += len(heard)

    def happened(self) -> bool:
        return self.heard_bytes > 0


class Refuses(Peer):
    """Speaks HTTP/2 and gRPC well enough to deny every call."""

    def treat(self, connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        stream.read(PREFACE_BYTES)
        connection.sendall(_frame(SETTINGS, 0, 0, b""))
        while head := stream.read(9):
            length, kind, flags, number = struct.unpack(">I", b"\0" + head[:3])[0], head[3], head[4], head[5:9]
            stream.read(length)
            if kind == SETTINGS and not flags & ACK:
                connection.sendall(_frame(SETTINGS, ACK, 0, b""))
            elif kind == HEADERS:
                # :status 200 is entry 8 of HPACK's static table, the others are written out.
                block = (
                    b"\x88" + _header(b"content-type", b"application/grpc") + _header(b"grpc-status", PERMISSION_DENIED)
                )
                block += _header(b"grpc-message", b"nobody may")
                connection.sendall(_frame(HEADERS, END_STREAM | END_HEADERS, struct.unpack(">I", number)[0], block))
                self.answers += 1

    def happened(self) -> bool:
        return self.answers > 0


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _header(name: bytes, value: bytes) -> bytes:
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


class Slow(Peer):
    """Forwards everything to a real daemon and back, with delay and in small pieces."""

    PIECE_BYTES = 1024
    LATE_S = 0.02

    def __init__(self, port: int) -> None:
        self._port = port
        self.delays = 0
        super().__init__()

    def treat(self, connection: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", self._port)) as daemon:
            self._open.append(daemon)
            back = threading.Thread(target=self._pass_on, args=(daemon, connection), daemon=True)
            back.start()
            self._pass_on(connection, daemon)
            back.join()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while heard := one.recv(self.PIECE_BYTES):
                time.sleep(self.LATE_S)
                self.delays += 1
                self.heard_bytes += len(heard)
                other.sendall(heard)
        with contextlib.suppress(OSError):
            other.shutdown(socket.SHUT_WR)

    def happened(self) -> bool:
        return self.delays > 2


NASTY: list[Callable[[], Peer]] = [Absent, HangsUp, Rubbish, Silent, Refuses]
