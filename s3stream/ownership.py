"""What the engine asks before it makes something final: for whom it writes objects, and whether this process
still owns the node.

Declared here, implemented above (broker/identity/ownership.py). Who was replaced by a newer owner commits
nothing and deletes nothing more.
"""

from __future__ import annotations

from typing import Final, Protocol

from millrace.s3stream.ids import Writer


class Ownership(Protocol):
    @property
    def writer(self) -> Writer | None:
        """Whom footers name; None at millrace.version 0, which has no owners."""
        ...

    @property
    def is_conditional(self) -> bool:
        """Objects are put if absent: the store was seen to keep that condition."""
        ...

    async def verify(self, since_s: float) -> None:
        """Returns when the store was asked, not before `since_s` on the loop's clock, and knew no newer
        owner. Raises Fenced when it does, Unavailable (or StoreDenied) when it did not answer: then nothing
        is known, and nothing may be made final."""
        ...


class AckGate(Protocol):
    """Whether what became durable may be told to anybody. Closed when the process stood still for so long
    that a newer owner may have begun meanwhile; opened by a look that began after that and found none."""

    def may_acknowledge(self) -> bool:
        """Asked once for each durable group, so it is quick. Once it has said no, it says so until a look has
        opened it."""
        ...

    async def wait_to_acknowledge(self) -> None:
        """On return `may_acknowledge` is true, and was asked in this very step of the loop. Raises Fenced
        when there is a newer owner: what waits may be told to nobody. Raises Closed when nobody looks any
        more. Waits for as long as the store does not answer."""
        ...


class Unowned:
    """At millrace.version 0: nobody is named, nothing is asked, and nothing held."""

    writer = None
    is_conditional = False

    async def verify(self, since_s: float) -> None:
        return

    def may_acknowledge(self) -> bool:
        return True

    async def wait_to_acknowledge(self) -> None:
        return


UNOWNED: Final = Unowned()
