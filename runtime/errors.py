"""The five remedies: every error of the project is one of these, sorted by what its catcher should do.

    MillraceError
    ├── Unavailable   try again later; nothing is known to be lost; the outcome may be unknown
    ├── Exhausted     a bound of ours is reached; shed or wait
    ├── Fenced        a newer owner exists; drop this object for ever
    ├── Corrupt       stored bytes fail their check; never retry
    └── Closed        used after close, or during shutdown

Each package's errors.py defines its own names under these. Retry loops catch Unavailable and nothing wider.
"""

from __future__ import annotations


class MillraceError(Exception):
    """Root of the project's errors; carries values as attributes, not sentences."""


class Unavailable(MillraceError):
    """Try again later. A timeout is one of these: the outcome is unknown, not failed."""


class Exhausted(MillraceError):
    """A bound of ours is reached: wait for room or refuse."""


class Fenced(MillraceError):
    """A newer owner exists. The holder drops what it holds and never retries."""


class Corrupt(MillraceError):
    """Stored bytes fail their checksum or their layout."""


class Closed(MillraceError):
    """The object was closed, or is closing."""


def in_words(error: BaseException | None) -> str:
    """What a line of the log says of an error: its own sentence; for one that has none, what kind it is and
    what it carries."""
    if error is None:
        return "no reason was told"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    has_form = type(error).__str__ not in (BaseException.__str__, KeyError.__str__, OSError.__str__)
    told = str(error) if has_form else ", ".join(map(str, error.args))
    if told and (has_form or isinstance(error, MillraceError)):
        return told
    return f"{type(error).__name__}: {told}" if told else type(error).__name__
