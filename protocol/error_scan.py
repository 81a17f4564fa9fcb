"""Finds the error codes of a response, at its top and within its arrays, whatever API it is of. Pure.

Not here: what a code means (error_codes.py), and who counts them (broker/dispatch.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from millrace.protocol.declare import wire_fields

# (response, found): appends every code that is not 0, in wire order but for a structure's own, which comes first.
ErrorScan: TypeAlias = Callable[[Any, list[int]], None]
ERROR_CODE = "error_code"


def error_scan(declared: type[Any]) -> ErrorScan | None:
    """None for a declaration that carries no error code anywhere."""
    has_code = False
    arrays: list[tuple[str, ErrorScan]] = []
    for field in wire_fields(declared):
        if field.name == ERROR_CODE:
            has_code = True
        elif field.type.element is not None and field.type.element.structure is not None:
            scan = error_scan(field.type.element.structure)
            if scan is not None:
                arrays.append((field.name, scan))
    if not arrays:
        return _scan_code if has_code else None

    def scan_all(value: Any, found: list[int]) -> None:
        if has_code and value.error_code:
            found.append(value.error_code)
        for name, scan in arrays:
            for element in getattr(value, name) or ():
                scan(element, found)

    return scan_all


def _scan_code(value: Any, found: list[int]) -> None:
    if value.error_code:
        found.append(value.error_code)
