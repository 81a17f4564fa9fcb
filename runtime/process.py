"""The process and its machine: limits, memory, files the operator names, and the end at once.

For the command line's edge only (broker/cli): nothing that runs in a simulation calls it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

_STRIDES = 10_000, 2, 125  # of the garbage collector
_CGROUP = Path("/sys/fs/cgroup")


def raise_file_limit() -> int:
    """Takes all the open files that the system allows; gives the number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return hard
    except (OSError, ValueError):  # macOS: a hard limit without bound cannot be taken
        return soft


def memory_bytes() -> int:
    """The memory this process may use: the machine's, or less where a cgroup says so."""
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine_bytes, *_cgroup_limits()])


def _cgroup_limits() -> list[int]:
    """Of this process's own group and of every group above it, in either version of cgroups."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        number, controllers, own = line.split(":", 2)
        if number == "0" and not controllers:
            found += _limits_upward(_CGROUP, own, "memory.max")
        elif "memory" in controllers.split(","):
            found += _limits_upward(_CGROUP / "memory", own, "memory.limit_in_bytes")
    return found


def _limits_upward(root: Path, own: str, name: str) -> list[int]:
    folder = root / own.strip("/")
    folders = [folder, *folder.parents]
    numbers = (_number(each / name) for each in folders if each == root or root in each.parents)
    return [number for number in numbers if number is not None]


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # not there, or the word "max"
        return None


def read_text(path: str) -> str:
    """A file the operator named. UTF-8, and what is not is read as Java would, as Latin 1. Raises OSError."""
    raw = Path(path).read_bytes()
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


@contextmanager
def loading() -> Iterator[None]:
    """Without collections: what modules make stays for good, and to look for garbage among it, again and
    again, takes a twentieth of a start."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(*_STRIDES)
        gc.enable()


def keep_start_out_of_collections(*, is_searched: bool = True) -> None:
    """`is_searched`: for garbage first, which takes a tenth of a start and finds little; a broker that lives
    as long as a test keeps it.

    What the start made stays for good: the garbage collector need not walk it again, each time, while
    requests wait.

    Later it looks at what is new in larger strides: nothing on the produce and fetch paths leaves cycles, so
    that all it does there is to walk the entries of the log cache, at the library's own thresholds 3.7 us an
    entry and 1.0 us at these. A stride of 10,000 objects is 0.3 ms. The walk over what two strides left is
    one pause, too, and bounds what a request of 100,000 elements holds the loop for: with five strides that
    was 20 ms. The walks over everything were pauses of 70 to 400 ms, and the last threshold makes them five
    times rarer.
    """
    if is_searched:
        gc.collect()
    gc.freeze()
    gc.set_threshold(*_STRIDES)


async def has_ended(handle: int, within_s: float) -> bool:
    """Whether the process of that handle (pidfd_open) ends within the time."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(handle, ended.set)  # it can be read from once the process has ended
    try:
        async with asyncio.timeout(within_s):
            await ended.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(handle)
    return True


def exit_now(code: int) -> NoReturn:
    """Ends without cleaning up anything; what was acknowledged is durable already."""
    os._exit(code)
