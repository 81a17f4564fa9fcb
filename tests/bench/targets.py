"""What the broker's figures are held to, each by a name: `--target NAME=NUMBER` of bench.py gives another
bound."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

# Rows that are not met, and docs/PERFORMANCE.md says so: they are MISSED like any other.
KNOWN = ("CPU a request of 32 KiB", "CPU a request of 64 KiB", "CPU a tail fetch")


@dataclass(frozen=True, slots=True)
class Targets:
    ready_s: float = 0.5
    idle_mib: float = 80
    many_ready_s: float = 1.0
    many_cpu_percent: float = 1.0
    of_device_percent: float = 60
    request_us: float = 100
    requests_a_second: float = 5000
    p99_ms: float = 10
    tail_percent: float = 98
    tail_behind_s: float = 0.5
    tail_fetch_us: float = 60

    def but(self, words: Iterable[str]) -> Targets:
        """`words`: NAME=NUMBER."""
        changed = {}
        for word in words:
            name, _, number = word.partition("=")
            if name not in {field.name for field in fields(self)}:
                raise argparse.ArgumentTypeError(
                    f"no target {name!r}: {', '.join(field.name for field in fields(self))}"
                )
            changed[name] = float(number)
        return replace(self, **changed)


def is_kept(value: float, bound: float, device: float) -> bool | None:
    """Whether a time on a disk is below its bound; None, and no verdict, where the disk by itself is not, at
    the same time."""
    if value < bound:
        return True
    return None if device >= bound else False
