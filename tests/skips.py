"""Which tests may be skipped, and why. Any other skip fails the run: what was not tried is no success, and a
jar or a package that is missing is what `make test` has to bring. A plugin of pytest; tests/conftest.py takes
it in.
"""

from __future__ import annotations

import re

import pytest

# The test (a part of its id) and the reason that it gives.
ALLOWED = (
    ("tests/runtime/disk/test_reserve.py", "root and losetup|losetup: "),  # a loop device is a privilege
    ("tests/wal/block/test_real_files.py", "root and losetup|losetup: |room on this disk"),
    ("tests/live/test_wal_device.py", "root and losetup|losetup: "),
    ("tests/live/test_full_disk.py", "losetup|mkfs|mount"),  # so is a file system of one's own
    ("tests/live/test_first_start.py", "losetup|mkfs|mount"),
    ("tests/live/test_network.py", "network namespaces: "),  # and networks of one's own
    ("tests/live/test_network_chaos.py", "network namespaces: "),
    ("tests/runtime/test_silent_peers.py", "network namespaces: "),
    ("tests/runtime/disk/test_files.py", "a folder of another user"),
    ("tests/runtime/disk/test_block.py", "unshare|tmpfs|io_uring|direct I/O"),
    (
        "tests/protocol/test_record_walk.py",
        "nothing to (compare|time)",
    ),  # no C compiler: the same in Python is tried
    ("tests/broker/network/test_connection.py", "only Linux"),
    ("tests/test_style.py", "no checkout"),  # an unpacked archive has no commits to look at
)


def is_allowed(test_id: str, reason: str) -> bool:
    return any(part in test_id and re.search(pattern, reason) for part, pattern in ALLOWED)


def reason_of(report: pytest.TestReport) -> str:
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)


def unexpected(config: pytest.Config) -> list[str]:
    """What was skipped for another reason, of all workers."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    reports = [] if reporter is None else reporter.stats.get("skipped", [])
    told = [(report.nodeid, reason_of(report)) for report in reports]
    return [f"{test_id}: {reason}" for test_id, reason in told if not is_allowed(test_id, reason)]


def pytest_sessionfinish(session: pytest.Session) -> None:
    if unexpected(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in unexpected(config):
        terminalreporter.write_line(f"SKIPPED, which fails the run (tests/skips.py): {line}", red=True)
