"""CRC-32C (Castagnoli): the checksum of Kafka's batches and of every format of the project.

`crc32c(data, value=0) -> int` takes any contiguous buffer, views included, without a copy; `value` is the
checksum of what came before, so that parts need not be joined. The package chooses between the processor's
instruction and a table once, when imported; google-crc32c is as quick and was refused because it takes
`bytes` alone.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING


def _load_extension() -> None:
    """The compiled part alone: the package around it loads a command line and the metadata of what is
    installed, 20 ms of each start.

    Registered under its own name, so that the package, if somebody imports it, finds it made. Without it the
    package is as good.
    """
    package = find_spec("crc32c")
    inner = (
        PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
        if package is not None
        else None
    )
    if inner is not None and inner.loader is not None and inner.name not in sys.modules:
        module = module_from_spec(inner)
        inner.loader.exec_module(module)
        sys.modules[inner.name] = module


_load_extension()
if TYPE_CHECKING or "crc32c._crc32c" not in sys.modules:
    from crc32c import crc32c as crc32c
else:
    crc32c = sys.modules["crc32c._crc32c"].crc32c
