"""Says whether others are to lead what a broker leads that does not reach the store of its write-ahead log.
Pure.

Such a broker speaks to the controllers and acknowledges nothing. Its log can be recovered where another
broker writes a log of its own to the same place at that moment, which is all the proof that there is: where
all are cut off, or the store is away, nobody is and nothing moves. Not here: since when it is so
(kraft/sessions.py), who recovers the log (leaders.py).
"""

from __future__ import annotations

from collections.abc import Container

from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.wals import SHARED_KINDS


def rescuer_of(image: MetadataImage, broker_id: int, well: Container[int]) -> int | None:
    """A broker among those that are `well` whose log lies where this one's does; None where there is none, or
    the log is of a kind that nobody else reaches for certain."""
    broker, log = image.brokers.get(broker_id), image.wals.active(broker_id)
    if broker is None or broker.is_fenced or log is None or log.kind not in SHARED_KINDS:
        return None
    for other in image.brokers:
        theirs = image.wals.active(other.broker_id)
        if (
            other.is_usable
            and other.broker_id != broker_id
            and other.broker_id in well
            and theirs is not None
            and (theirs.kind, theirs.address) == (log.kind, log.address)
        ):
            return other.broker_id
    return None
