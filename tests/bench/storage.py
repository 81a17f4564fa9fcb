"""The benchmarks of storage, one after the other, each in a process of its own: `make bench-storage`, `python
-m tests.bench.storage [NAME ...]`.

Each prints its own table. At the end stands who missed a target (or came to no end), and the exit code is 1
when anyone did. Names choose some of them.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence

PARTS: dict[str, tuple[str, ...]] = {
    "cost": (),
    "compaction_steady": (),
    "recovery": (),
    "object_wal": ("--virtual", "--seconds", "60"),
    "metadata_bytes": (),
}


def run_part(name: str) -> int:
    return subprocess.run([sys.executable, "-m", f"tests.bench.{name}", *PARTS[name]], check=False).returncode


def main(names: Sequence[str], run: Callable[[str], int] = run_part) -> int:
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    ended: list[tuple[str, int, float]] = []
    chosen = [name for name in PARTS if not names or name in names]
    for number, name in enumerate(chosen, 1):
        print(f"\n[{number}/{len(chosen)}] {name}", flush=True)
        began = time.monotonic()
        code = run(name)
        ended.append((name, code, time.monotonic() - began))
    print()
    for name, code, seconds in ended:
        print(f"{name:<20} {'met' if not code else f'FAILED, exit code {code}'}  after {seconds:.0f} s")
    return int(any(code for _, code, _ in ended))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
