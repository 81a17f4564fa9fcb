"""Authentication: what a node does on a fresh connection to another before it asks anything (its place).

    connected ─► ApiVersions ─► authenticate ─► requests ─► ... ─► authenticate again, before it expires

`ask` goes over that connection before all others, in versions that both know: SaslHandshake, and as many
rounds of SaslAuthenticate as it takes (KIP-43, KIP-152). What it gives back is for how many seconds it holds,
after which the peer would close the connection (KIP-368), or None.

Not here: TLS, which is the transport's: a Net is what connects, and it would bring the context; what is asked
of who connects to this node (broker/network). Kept true: who refuses is told apart from who is not reached.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from millrace.runtime.errors import Unavailable

Ask = Callable[[Any], Awaitable[Any]]


class AuthenticationRefused(Unavailable):
    """The peer does not take who asks for whom it says it is; the argument is the peer's reason."""


class Authentication(Protocol):
    async def authenticate(self, ask: Ask) -> float | None:
        """Bounded by who calls; cancelling it leaves a connection that is to be closed. Raises
        AuthenticationRefused; what `ask` raises."""


class NoAuthentication:
    """Of listeners without it: PLAINTEXT."""

    async def authenticate(self, ask: Ask) -> float | None:
        return None
