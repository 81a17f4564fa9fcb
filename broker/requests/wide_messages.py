"""Messages of very many elements, when nobody looks at them any more."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from millrace.protocol.codec import ELEMENTS_PER_CHUNK
from millrace.runtime.scheduling.yielding import Yielding


def freed_yielding(message: Any) -> Yielding[None]:
    """Empties the arrays of a message, with stops on the way: to free 100,000 elements in one piece would
    hold the loop for 20 ms. A small message has no stop, and keeps what it has."""
    for declared in fields(message):
        elements = getattr(message, declared.name)
        if isinstance(elements, list):
            while len(elements) > ELEMENTS_PER_CHUNK:
                del elements[-ELEMENTS_PER_CHUNK:]
                yield
