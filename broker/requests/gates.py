"""What a request passes on its way to its handler: may this connection ask at all, may its principal ask
this, is its quota used up.

Nobody asks yet: listeners are PLAINTEXT, everybody is User:ANONYMOUS, nothing is counted. What will be asked
is in an API's row (api_traits.py). Not here: what a request names, topic by topic (its handler).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millrace.broker.requests.api_traits import Traits
from millrace.broker.requests.request import Handle, RequestContext
from millrace.protocol.dataclass import dataclass
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError


def is_authenticated(context: RequestContext, traits: Traits) -> bool:
    """Before a request is decoded; of one that is not, the connection ends."""
    return True


def passes(context: RequestContext, traits: Traits, request: Any) -> ErrorCode | None:
    """Where nobody asks."""
    return None


@dataclass(frozen=True, slots=True)
class Gates:
    """`authorise`: with what code a request is refused as a whole, in its API's own form. `count`: likewise,
    of one that is authorised."""

    is_authenticated: Callable[[RequestContext, Traits], bool] = is_authenticated
    authorise: Callable[[RequestContext, Traits, Any], ErrorCode | None] = passes
    count: Callable[[RequestContext, Traits, Any], ErrorCode | None] = passes

    def before(self, handle: Handle, traits: Traits) -> Handle:
        """The handler behind the gates. It raises KafkaError for what they refuse. Where nobody asks it is
        the handler itself: a request pays for no gate."""
        authorise, count = self.authorise, self.count
        if authorise is passes and count is passes:
            return handle

        def gated(context: RequestContext, request: Any) -> Any:
            code = authorise(context, traits, request) or count(context, traits, request)
            if code is not None:
                raise KafkaError(code)
            return handle(context, request)

        return gated
