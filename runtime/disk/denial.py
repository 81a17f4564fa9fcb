"""Why the system lets a process not at a file or folder, in words that go on behind its own: whose it is, and
who asks. Blocking."""

from __future__ import annotations

import errno
import os

DENIED = (errno.EACCES, errno.EPERM)


def denial_words(error: OSError, path: str) -> str:
    """The system's words; of a right that is missing also the owner and mode of `path`, or of what it lies in
    that can be looked at."""
    words = error.strerror or str(error)
    if error.errno not in DENIED or not path:
        return words
    found, path = _look(path), os.path.abspath(path)
    while found is None and path != "/":
        path = os.path.dirname(path)
        found = _look(path)
    if found is None:
        return words
    return (
        f"{words}: {path} belongs to user {found.st_uid} (mode {found.st_mode & 0o7777:04o}), and this "
        f"process runs as user {os.geteuid()}"
    )


def _look(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None
