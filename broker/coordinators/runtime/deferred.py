"""Responses that wait for a decision, or for records to be durable: the DeferredEvents of request handlers
and of the runtime.

A response that is complete before its request's handler returns costs no future. It is completed once; later
answers are dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar, Union

from millrace.runtime.scheduling.chunks import Yielder, in_chunks

R = TypeVar("R")
Outcome: TypeAlias = Union[R, "asyncio.Future[R]"]

OUTCOMES_PER_CHUNK = 2000


class DeferredResponse(Generic[R]):
    """`form` makes the response of an answer, `refusal` of a Kafka error code."""

    __slots__ = ("_form", "_future", "_refusal", "_response")

    def __init__(self, form: Callable[[Any], R], refusal: Callable[[int], R]) -> None:
        self._form = form
        self._refusal = refusal
        self._response: R | None = None
        self._future: asyncio.Future[R] | None = None

    def complete(self, answer: Any) -> None:
        self._resolve(self._form(answer))

    def fail(self, code: int) -> None:
        self._resolve(self._refusal(code))

    def outcome(self) -> Outcome[R]:
        """The response, or a future of it. Once, by the handler."""
        if self._response is not None:
            return self._response
        self._future = asyncio.get_running_loop().create_future()
        return self._future

    def _resolve(self, response: R) -> None:
        if self._response is None:
            self._response = response
            if self._future is not None and not self._future.done():
                self._future.set_result(response)


class Callback:
    """In the place of a client: the coordinator itself waits for its records."""

    __slots__ = ("complete", "fail")

    def __init__(
        self, on_durable: Callable[[Any], None], on_fail: Callable[[int], None] = lambda _: None
    ) -> None:
        """`on_fail` is for one that must know when the shard is unloaded; most end with it."""
        self.complete = on_durable
        self.fail = on_fail


def unchanged(answer: R) -> R:
    """For an answer that is the response already."""
    return answer


async def all_of(outcomes: Sequence[Outcome[R]], yielder: Yielder) -> list[R]:
    """The responses in their order, when the last one is there. They go on by themselves; cancelling this
    loses nothing of them."""
    found: list[R] = []
    async for part in in_chunks(outcomes, OUTCOMES_PER_CHUNK, yielder):
        found += [await asyncio.shield(outcome) if asyncio.isfuture(outcome) else outcome for outcome in part]
    return found
