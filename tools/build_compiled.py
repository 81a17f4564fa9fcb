"""Builds what is optional and compiled, in place: protocol/_record_walk.c. Run by make with the environment's
own interpreter.

Quick and quiet: half a second with a C compiler and Python's headers, and one line without them, where the
same code in Python does the work. Never fails: nothing but the speed of `record.validation=records` depends
on it. An installed Millrace (`pip install .`) is built by setuptools, from the same file (pyproject.toml).
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
SOURCE = CHECKOUT / "protocol" / "_record_walk.c"
BUILT = SOURCE.with_name("_record_walk.abi3.so")
WITHOUT = "record.validation=records will be slow here"


def build() -> str:
    """What is missing; nothing when it is built."""
    words = shlex.split(os.environ.get("CC", "")) or ["gcc" if shutil.which("gcc") else "cc"]
    if shutil.which(words[0]) is None:
        return "no C compiler"
    include = sysconfig.get_path("include")
    if not Path(include, "Python.h").exists():
        return f"no Python.h in {include} (on Debian, apt-get install python3-dev)"
    # Beside the old one and then over it: a broker may be running from it.
    fresh = BUILT.with_name(f"_record_walk.{os.getpid()}.tmp")
    command = [*words, "-O2", "-shared", "-fPIC", f"-I{include}", str(SOURCE), "-o", str(fresh)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        fresh.unlink(missing_ok=True)
        return f"{words[0]} failed: {done.stderr.strip()[-300:]}"
    fresh.replace(BUILT)
    return ""


if __name__ == "__main__":
    missing = build()
    if missing:
        print(f"{missing}: {WITHOUT}", file=sys.stderr)
