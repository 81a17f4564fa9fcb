"""Asks a broker in test mode for a fault, over its control listener (broker/injection_http.py)."""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import urlencode

ANSWER_S = 30.0
HOST = "127.0.0.1"


def ask(port: int, command: str, **arguments: object) -> dict[str, Any]:
    """ValueError for what the broker does not take, with its sentence."""
    query = urlencode({name: str(value) for name, value in arguments.items()})
    with socket.create_connection((HOST, port), ANSWER_S) as connection:
        connection.sendall(f"POST /{command}?{query} HTTP/1.1\r\nHost: {HOST}:{port}\r\n\r\n".encode())
        parts = []
        while part := connection.recv(65_536):
            parts.append(part)
    head, _, body = b"".join(parts).partition(b"\r\n\r\n")
    answer: dict[str, Any] = json.loads(body)
    if b" 200 " not in head.split(b"\r\n", 1)[0]:
        raise ValueError(answer["error"])
    return answer
