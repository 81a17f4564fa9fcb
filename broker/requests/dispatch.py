"""The course of a request, from a frame to its handler and from what the handler gave back to the bytes of
the reply.

    frame -> admit -> authenticated? -> decode -> authorise -> quota -> handle -> encode -> send
             connection.py              `begin`, or in chunks `answered`          `encode`, `in_bytes`
                       gates.py                   gates.py

What holds for an API stands in its row of api_traits.py.

Not here: sockets, order and budgets (connection.py), meaning (handlers). Kept true:

  * `begin` raises WireError for what must end the connection unanswered (unknown API, a version outside the
    advertised range, an undecodable header or body, or one that is too large) and nothing else: whatever a
    handler raises becomes an answer.
  * An ApiVersions request of a version we do not know is answered in version 0 with UNSUPPORTED_VERSION
    (KIP-511).
  * What a cold handler answers may be large, and is encoded in chunks (broker/requests/work.py) as soon
    as it is there. A request that holds many elements is decoded in chunks too, and so is a large one whose
    work is CHUNKED: its handler is called when it is decoded. A connection begins nothing behind what is
    large, so that it has one such answer at a time, however many it asks for.
  * Every answer that is an error is built by the handler's own `refuse(request, code)` where it has one, else
    by the response's top-level error_code where that version carries one; else there is no honest answer and
    the connection closes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator, Hashable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

from millrace.broker.errors import code_of
from millrace.broker.requests.api_traits import TRAITS, Answer, Order, Work
from millrace.broker.requests.gates import Gates
from millrace.broker.requests.request import CLOSE, ConnectionInfo, Encoded, Handle, RequestContext, Verdict
from millrace.broker.requests.wide_messages import freed_yielding
from millrace.broker.requests.work import LARGE_AT_ONCE, RequestWork, WideRequests
from millrace.protocol.apis import API, Api
from millrace.protocol.codec import (
    ELEMENTS_PER_CHUNK,
    decode_request,
    decode_request_yielding,
    encode_response,
    encode_response_yielding,
)
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.error_scan import error_scan, error_scan_yielding
from millrace.protocol.errors import TooManyElements, WireError
from millrace.protocol.frame import in_own_memory
from millrace.protocol.header import API_VERSIONS_KEY, decode_request_header
from millrace.runtime.disk import Buffer
from millrace.runtime.errors import in_words
from millrace.runtime.metrics import Histogram, measured_s
from millrace.runtime.scheduling.semaphore import Semaphore
from millrace.runtime.scheduling.yield_queue import YieldQueue, run_yielding

log = logging.getLogger(__name__)
# A request that carries no records is never this large; what is decoded of one may take several times its
# bytes (text above all).
OTHER_REQUEST_BYTES_MAX = 16 << 20
CHUNKED_FROM_BYTES = 64 << 10
# Nor is one of many elements this large that is answered in one go: 30,000 are some fifteen milliseconds.
WHOLE_BYTES_MAX = 128 << 10
NAMES_OF_CODES = {int(code): code.name for code in ErrorCode}
UNANSWERED = "UNANSWERED"
TRACE_FREE = (WireError, asyncio.CancelledError)
NO_GATES = Gates()


class Route:
    """One API as this broker serves it. `handle`: behind the gates. `refuse` is the handler's own error form,
    if it has one. `is_barrier`: its connection begins nothing behind one that is not done; `is_late_barrier`:
    nor behind one whose handler has to be awaited. `seconds`: from the beginning of a request until its
    reply's turn in its connection's line. `error_counts`: errors that were answered, by the code's name, one
    for each place of an answer that has one; UNANSWERED counts connections that were closed instead.
    `on_new_error` is told a name when it is counted for the first time."""

    __slots__ = (
        "api",
        "error_counts",
        "handle",
        "has_records",
        "is_barrier",
        "is_chunked",
        "is_late_barrier",
        "is_whole",
        "large_permits",
        "max_version",
        "min_version",
        "new_work",
        "on_new_error",
        "refuse",
        "requests_count",
        "response_type",
        "scan",
        "scan_yielding",
        "seconds",
        "traits",
    )

    def __init__(
        self, api: Api, handle: Handle, gates: Gates, yield_queue: YieldQueue, wide: WideRequests
    ) -> None:
        self.api = api
        self.traits = traits = TRAITS[api.key]
        self.handle = gates.before(handle, traits)
        # A wide Fetch, and what groups keep, are served in pieces by their handlers.
        self.is_whole = traits.work is Work.WHOLE and traits.answer is not Answer.SHARED
        self.is_barrier = traits.order is Order.BARRIER
        self.is_chunked = traits.work is Work.CHUNKED
        self.has_records = traits.work is Work.RECORDS
        self.is_late_barrier = self.is_barrier or self.has_records or traits.answer is Answer.WIDE
        self.large_permits = Semaphore(LARGE_AT_ONCE)
        self.new_work = partial(RequestWork, yield_queue, self.large_permits, wide)
        self.min_version = api.min_version
        self.max_version = api.max_stable_version
        self.refuse: Callable[[Any, int], Any] | None = getattr(
            getattr(handle, "__self__", None), "refuse", None
        )
        self.requests_count = 0
        self.error_counts: dict[str, int] = {}
        self.on_new_error: Callable[[str], None] = lambda name: None
        self.scan = error_scan(api.response_type)
        self.scan_yielding = error_scan_yielding(api.response_type)
        self.seconds = Histogram()

    def count_errors(self, response: Any) -> None:
        """Those that the response tells."""
        if self.scan is not None:
            found: list[int] = []
            self.scan(response, found)
            if found:
                self._count_all(found)

    def count_errors_yielding(self, response: Any) -> Generator[None, None, None]:
        """The same, with stops on the way."""
        found: list[int] = []
        for count, _ in enumerate(self.scan_yielding(response, found), 1):
            if not count % ELEMENTS_PER_CHUNK:
                self._count_all(found)
                found.clear()
                yield
        self._count_all(found)

    def _count_all(self, codes: list[int]) -> None:
        for code in codes:
            self.count_error(NAMES_OF_CODES.get(code) or str(code))

    def count_error(self, name: str) -> None:
        self.show_error(name)
        self.error_counts[name] += 1

    def show_error(self, name: str) -> None:
        """From now on it is shown, if only as 0."""
        if name not in self.error_counts:
            self.error_counts[name] = 0
            self.on_new_error(name)


class Late:
    """A handler that is made, and its modules loaded, when its API is first asked for: a start pays for what
    it serves with."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[[], Handle]) -> None:
        self.make = make


class Exchange:
    """One request and its place in the connection's line of replies.

    `outcome` is what the handler gave back: a response, a Verdict, or a future of either, or of an Encoded
    (`is_pending`). `version` is the version that the reply is encoded in, the request's own but for the
    answer to an unknown ApiVersions. `is_barrier`: its connection begins nothing behind it before it is done.
    `began_s`: by the clock of what is measured. `on_begun`: called when the handler was, of a request that is
    decoded in chunks.
    """

    __slots__ = (
        "began_s",
        "charged_bytes",
        "context",
        "is_barrier",
        "is_pending",
        "is_watched",
        "on_begun",
        "outcome",
        "part",
        "request",
        "route",
        "version",
    )

    def __init__(
        self, route: Route, context: RequestContext, request: Any, outcome: Any, version: int, began_s: float
    ) -> None:
        self.began_s = began_s
        self.route = route
        self.context = context
        self.request = request
        self.outcome = outcome
        self.version = version
        self.is_barrier = route.is_barrier
        self.is_pending = False
        self.is_watched = False  # its end is told to the connection
        self.on_begun: Callable[[], None] | None = None
        self.charged_bytes = 0
        self.part = 0  # of the memory for requests, which it is charged to


async def at_once(answer: Coroutine[Any, Any, Any], address: Hashable) -> Any:
    """Where nothing takes turns."""
    return await answer


class Dispatcher:
    """The handler table. `start_task` turns a cold handler's coroutine into a future (the loop's
    create_task); `begin_in_turns` says when its first step is taken, by its client's address
    (network/loop_turns.py)."""

    def __init__(
        self,
        handlers: Mapping[int, Handle | Late],
        start_task: Callable[[Any], asyncio.Future[Any]],
        yield_queue: YieldQueue,
        gates: Gates = NO_GATES,
        wide: WideRequests | None = None,
        begin_in_turns: Callable[[Coroutine[Any, Any, Any], Hashable], Awaitable[Any]] = at_once,
    ) -> None:
        self._begin_in_turns = begin_in_turns
        self._handlers = handlers
        self._gates = gates
        self._routes: dict[int, Route] = {}
        self._start_task = start_task
        self._yield_queue = yield_queue
        self.wide = WideRequests(16 << 20) if wide is None else wide
        # told of each API that is asked for the first time
        self.on_route: Callable[[Route], None] | None = None

    @property
    def routes(self) -> Mapping[int, Route]:
        """The APIs that were asked for."""
        return self._routes

    def _open(self, key: int) -> Route | None:
        handle = self._handlers.get(key)
        if handle is None:
            return None
        made = handle.make() if isinstance(handle, Late) else handle
        route = Route(API[key], made, self._gates, self._yield_queue, self.wide)
        self._routes[key] = route
        if self.on_route is not None:
            self.on_route(route)
        return route

    def begin(self, frame: Buffer, connection: ConnectionInfo) -> Exchange:
        """Decodes the frame and runs the handler's ordered part, or has both done in chunks. On return no
        view of the frame is left that is not all of its memory. Raises WireError for what is malformed, not
        served, too large, or sent before authentication; what a handler raises is answered."""
        began_s = measured_s()
        header, position = decode_request_header(frame)
        version = header.api_version
        route = self._routes.get(header.api_key) or self._open(header.api_key)
        if route is None:
            raise WireError(f"API key {header.api_key} version {version} is not served")
        context = RequestContext(
            header.api_key, version, header.correlation_id, header.client_id, connection, route.new_work
        )
        if not route.min_version <= version <= route.max_version:
            if route.api.key != API_VERSIONS_KEY:
                raise WireError(f"{route.api.name} version {version} is not served")
            return Exchange(
                route, context, None, self._refusal(route, 0, None, ErrorCode.UNSUPPORTED_VERSION), 0, began_s
            )
        if not self._gates.is_authenticated(context, route.traits):
            raise WireError(f"{route.api.name} before authentication")
        if len(frame) > OTHER_REQUEST_BYTES_MAX and not route.has_records:
            raise WireError(f"{route.api.name} of {len(frame)} bytes, the bound is {OTHER_REQUEST_BYTES_MAX}")
        if len(frame) >= CHUNKED_FROM_BYTES and route.is_chunked:
            return self._begin_large(route, context, frame, position, began_s, is_large=True)
        try:
            request = decode_request(route.api, version, frame, position)
        except TooManyElements:
            if route.is_whole and len(frame) > WHOLE_BYTES_MAX:
                text = (
                    f"{route.api.name} of {len(frame)} bytes in many elements, the bound is {WHOLE_BYTES_MAX}"
                )
                raise WireError(text) from None
            return self._begin_large(route, context, frame, position, began_s, is_large=False)
        route.requests_count += 1
        exchange = Exchange(route, context, request, None, version, began_s)
        try:
            outcome = route.handle(context, request)
            if isinstance(outcome, asyncio.Future):
                exchange.is_pending = True
            elif type(outcome) is not route.api.response_type and not isinstance(outcome, Verdict):
                if not asyncio.isfuture(outcome):
                    assert asyncio.iscoroutine(outcome), outcome
                    exchange.is_barrier = route.is_late_barrier
                    outcome = self._begin_in_turns(outcome, connection.network)
                    outcome = self._start_task(encoded(exchange, outcome))
                exchange.is_pending = True
            exchange.outcome = outcome
        except Exception as error:
            exchange.outcome = self._answer_error(exchange, error)
        return exchange

    def _begin_large(
        self,
        route: Route,
        context: RequestContext,
        frame: Buffer,
        position: int,
        began_s: float,
        *,
        is_large: bool,
    ) -> Exchange:
        exchange = Exchange(route, context, None, None, context.api_version, began_s)
        route.requests_count += 1
        exchange.is_pending = exchange.is_barrier = True
        exchange.outcome = self._start_task(
            answered(exchange, in_own_memory(frame), position, is_large=is_large)
        )
        return exchange

    def settle(self, exchange: Exchange) -> Any:
        """The outcome of a pending exchange whose future is done: a response, Encoded or not, or a Verdict,
        never an exception."""
        try:
            return exchange.outcome.result()
        except (Exception, asyncio.CancelledError) as error:
            return self._answer_error(exchange, error)

    def encode(self, exchange: Exchange, response: Any) -> list[Buffer] | None:
        """The reply's bytes, or None when there is none that could be sent: the connection is to close."""
        exchange.route.seconds.observe(measured_s() - exchange.began_s)
        if isinstance(response, Encoded):
            return response
        correlation_id = exchange.context.correlation_id
        try:
            exchange.route.count_errors(response)
            return encode_response(exchange.route.api, exchange.version, correlation_id, response)
        except Exception as error:
            refusal = self._answer_error(exchange, error)
        if isinstance(refusal, Verdict):
            return None
        try:
            exchange.route.count_errors(refusal)
            return encode_response(exchange.route.api, exchange.version, correlation_id, refusal)
        except Exception:
            log.exception("%s: the refusal cannot be encoded either", exchange.route.api.name)
            return None

    def _answer_error(self, exchange: Exchange, error: BaseException) -> Any:
        """A response that says the error, or CLOSE."""
        if isinstance(error, TRACE_FREE):
            if isinstance(error, WireError):
                log.info("%s of %r: %s", exchange.route.api.name, exchange.context.client_id, error)
            exchange.route.count_error(UNANSWERED)
            return CLOSE
        code = code_of(error)
        name = exchange.route.api.name
        if code is None:
            code = ErrorCode.UNKNOWN_SERVER_ERROR
            context = exchange.context
            log.error("%s v%d of %r failed", name, context.api_version, context.client_id, exc_info=error)
        else:
            log.debug("%s refused with %s: %s", name, code.name, in_words(error))
        try:
            return self._refusal(exchange.route, exchange.version, exchange.request, code)
        except Exception:
            log.exception("%s: no refusal could be built", name)
            exchange.route.count_error(UNANSWERED)
            return CLOSE

    def _refusal(self, route: Route, version: int, request: Any, code: ErrorCode) -> Any:
        if route.refuse is not None:
            return route.refuse(request, code)
        if has_error_code(route.api.response_type, version):
            return route.api.response_type(error_code=int(code))
        route.count_error(UNANSWERED)
        return CLOSE


async def answered(exchange: Exchange, frame: Buffer, position: int, *, is_large: bool) -> Any:
    """What becomes of a request that is decoded in chunks; one that is large by its bytes keeps its permit
    until it is answered. WireError for one that cannot be decoded."""
    route, context = exchange.route, exchange.context
    work = context.work
    await work.begin()
    try:
        exchange.request = await run_yielding(
            decode_request_yielding(route.api, exchange.version, frame, position), work.yield_now
        )
        del frame
        if not is_large:
            work.end()
        outcome = route.handle(context, exchange.request)
        if exchange.on_begun is not None:
            exchange.on_begun()
        if asyncio.iscoroutine(outcome):
            return await in_bytes(exchange, await outcome, work)
        response = await outcome if asyncio.isfuture(outcome) else outcome
        return await in_bytes(exchange, response, work, is_shared=True)
    finally:
        work.end()


async def encoded(exchange: Exchange, answer: Awaitable[Any]) -> Encoded | Verdict:
    """What a cold handler's coroutine comes to."""
    work = exchange.context.work
    try:
        return await in_bytes(exchange, await answer, work)
    finally:
        work.end()


async def in_bytes(
    exchange: Exchange, response: Any, work: RequestWork, *, is_shared: bool = False
) -> Encoded | Verdict:
    """The bytes of its reply, request and response being freed but where others may have them too.
    ValueError for what its version cannot carry."""
    if isinstance(response, Verdict | Encoded):
        return response
    await run_yielding(exchange.route.count_errors_yielding(response), work.yield_now)
    steps = encode_response_yielding(
        exchange.route.api, exchange.version, exchange.context.correlation_id, response
    )
    reply = Encoded(await run_yielding(steps, work.yield_now))
    for message in () if is_shared else (response, exchange.request):
        await run_yielding(freed_yielding(message), work.yield_now)
    return reply


def has_error_code(response_type: type[Any], version: int) -> bool:
    """Whether that version of the response carries a top-level error code."""
    for declared in fields(response_type):
        if declared.name == "error_code":
            presence = declared.metadata.get("wire")
            return presence is None or (
                presence.since <= version and (presence.until is None or version <= presence.until)
            )
    return False
