"""The process's limits: memory as cgroups have it, open files, and files the operator names."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

from millrace.runtime import process
from tests.patience import PATIENCE_S


def test_the_smallest_group_upward_counts(tmp_path: Path) -> None:
    """Limits are read from the process's own group up to the mount's root, "max" and missing files say
    nothing."""
    inner = tmp_path / "pod" / "container"
    inner.mkdir(parents=True)
    (inner / "memory.max").write_text("max\n")
    (tmp_path / "pod" / "memory.max").write_text("1073741824\n")
    assert process._limits_upward(tmp_path, "/pod/container", "memory.max") == [1 << 30]
    assert process._limits_upward(tmp_path, "/gone/away", "memory.max") == []
    (tmp_path / "memory.max").write_text("536870912\n")
    assert min(process._limits_upward(tmp_path, "/pod/container", "memory.max")) == 512 << 20


def test_memory_is_the_machines_or_less() -> None:
    """What the process may use is above zero and no more than the machine has."""
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < process.memory_bytes() <= machine_bytes


def test_the_file_limit_is_raised_to_the_hard_one() -> None:
    """Afterwards as many files may be open as the system allows."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        limit = process.raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == limit >= before[0]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[0], before[1]))


def test_what_is_loaded_is_no_garbage() -> None:
    """The collector rests while modules are loaded, leaves alone what they made, and goes on behind them,
    also behind one that fails."""
    code = """
import gc
from millrace.runtime.process import loading
try:
    with loading():
        assert not gc.isenabled()
        raise ImportError
except ImportError:
    assert gc.isenabled()
assert gc.get_freeze_count() > 1000
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)
