"""Refusals of transactions, which are not served: one code and text for clients, one line a client address,
client id and minute for the operator.

Which code a client reports plainly was tried
(docs/decisions/2026-11-25-transactions-are-refused-in-plain-words.md): those that ask for coordinators in a
list (FindCoordinator 4 and later: Java, franz-go) end at once with any code that is not retried, and Java
shows the text that comes with it; librdkafka, which asks for one, takes every code but a missing right for a
reason to ask again until its time is over. Not here: the answers (handlers/find_coordinator.py,
handlers/init_producer_id.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from millrace.broker.requests.request import RequestContext
from millrace.broker.told import Told
from millrace.protocol.error_codes import ErrorCode

log = logging.getLogger(__name__)
TEXT = "transactions are not served by this broker"
CHARS_MAX = 100  # of a name, in the log
LISTED_SINCE = 4  # FindCoordinator's first version with a list


class TransactionRefusals:
    """`now_s` is the loop's monotonic clock."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._told = Told()

    def coordinator_code(self, context: RequestContext, transactional_id: str) -> ErrorCode:
        """Of a coordinator that is looked for."""
        self.note(context, transactional_id)
        is_listed = context.api_version >= LISTED_SINCE
        return ErrorCode.UNSUPPORTED_VERSION if is_listed else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

    def producer_code(self, context: RequestContext, transactional_id: str) -> ErrorCode:
        """Of a producer id for a transactional id; no client asks for one without a coordinator."""
        self.note(context, transactional_id)
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

    def note(self, context: RequestContext, transactional_id: str) -> None:
        who = context.connection
        if self._told.is_due(f"{who.peer_host} {context.client_id}", self._now_s()):
            log.warning(
                "transactions: client %r at %s:%d is refused the transactional id %r: this broker serves no "
                "transactions, and no right is "
                "missing: leave transactional.id away (enable.idempotence alone keeps retries from being "
                "written twice; Kafka Streams: "
                "processing.guarantee=at_least_once)",
                context.client_id and context.client_id[:CHARS_MAX],
                who.peer_host,
                who.peer_port,
                transactional_id[:CHARS_MAX],
            )
