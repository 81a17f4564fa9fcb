"""Finds the error codes of a response, at its top and within its arrays, whatever API it is of. Pure.

Not here: what a code means (error_codes.py), and who counts them (broker/requests/dispatch.py).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeAlias

from millrace.protocol.declare import wire_fields

# (response, found): appends every code that is not 0, in wire order but for a structure's own, which comes
# first.
ErrorScan: TypeAlias = Callable[[Any, list[int]], None]
# The same with a stop behind each element of an array.
YieldingErrorScan: TypeAlias = Callable[[Any, list[int]], Generator[None, None, None]]
ERROR_CODE = "error_code"


def error_scan(declared: type[Any]) -> ErrorScan | None:
    """None for a declaration that carries no error code anywhere."""
    has_code, inside = _places(declared)
    arrays = [(name, error_scan(structure)) for name, structure in inside]
    if not arrays:
        return _scan_code if has_code else None

    def scan_all(value: Any, found: list[int]) -> None:
        if has_code and value.error_code:
            found.append(value.error_code)
        for name, scan in arrays:
            assert scan is not None
            for element in getattr(value, name) or ():
                scan(element, found)

    return scan_all


def error_scan_yielding(declared: type[Any]) -> YieldingErrorScan:
    """Like `error_scan`, to be stopped on the way; it finds nothing in a declaration without error codes."""
    has_code, inside = _places(declared)
    arrays = [(name, error_scan_yielding(structure)) for name, structure in inside]

    def scan_all(value: Any, found: list[int]) -> Generator[None, None, None]:
        if has_code and value.error_code:
            found.append(value.error_code)
        for name, scan in arrays:
            for element in getattr(value, name) or ():
                yield from scan(element, found)
                yield

    return scan_all


def _places(declared: type[Any]) -> tuple[bool, list[tuple[str, type[Any]]]]:
    """Whether it has an error code of its own, and its arrays of structures that have one, near or far."""
    has_code = False
    arrays = []
    for field in wire_fields(declared):
        element = field.type.element
        if field.name == ERROR_CODE:
            has_code = True
        elif element is not None and element.structure is not None and any(_places(element.structure)):
            arrays.append((field.name, element.structure))
    return has_code, arrays


def _scan_code(value: Any, found: list[int]) -> None:
    if value.error_code:
        found.append(value.error_code)
