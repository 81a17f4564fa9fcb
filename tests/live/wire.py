"""A client that speaks frames on a blocking socket, to a live broker: for what real clients cannot be made to
send.

`ask` sends one request through our own codec and gives the decoded reply; `send_bytes` and `read_frame` are
for frames of any shape. Not a Kafka client: no metadata, no retries, one connection.
"""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Any

from millrace.protocol.apis import API
from millrace.protocol.codec import decode_response, encode_request
from tests.patience import PATIENCE_S


class Wire:
    def __init__(self, address: str) -> None:
        """`address`: HOST:PORT."""
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        self._correlation_id = 0

    def ask(self, key: int, version: int, request: Any = None) -> Any:
        self._correlation_id += 1
        api = API[key]
        self.send_bytes(
            encode_request(api, version, self._correlation_id, "wire", request or api.request_type())
        )
        correlation_id, response = decode_response(api, version, memoryview(self.read_frame()))
        assert correlation_id == self._correlation_id
        return response

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read_frame(self) -> bytes:
        """The next reply without its length. Raises EOFError when the other side closes before it is
        whole."""
        (size,) = struct.unpack(">i", self._read(4))
        return self._read(size)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = self.socket.recv(size - len(data))
            if not chunk:
                raise EOFError(f"closed after {len(data)} of {size} bytes")
            data += chunk
        return data

    def is_closed_unanswered(self) -> bool:
        """Waits: the other side closes and says nothing before."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
