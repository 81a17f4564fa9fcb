"""Who waits for an answer: what a group holds as a token, and what stands behind records that are not durable yet.

A ticket that is answered before its request's handler returns costs no future. It is answered once; later answers are dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from millrace.broker.slices import in_slices

R = TypeVar("R")

OUTCOMES_A_SLICE = 2000


class Waiting(Protocol):
    def give(self, answer: Any) -> None:
        """The answer may be shown."""
        ...

    def refuse(self, code: int) -> None:
        """There will be none here: the shard ends."""
        ...


class Ticket(Generic[R]):
    """`form` makes the response of an answer, `refusal` of an error code."""

    __slots__ = ("_form", "_future", "_refusal", "_response")

    def __init__(self, form: Callable[[Any], R], refusal: Callable[[int], R]) -> None:
        self._form = form
        self._refusal = refusal
        self._response: R | None = None
        self._future: asyncio.Future[R] | None = None

    def give(self, answer: Any) -> None:
        self._settle(self._form(answer))

    def refuse(self, code: int) -> None:
        self._settle(self._refusal(code))

    def outcome(self) -> R | asyncio.Future[R]:
        """The response, or a future of it. Once, by the handler."""
        if self._response is not None:
            return self._response
        self._future = asyncio.get_running_loop().create_future()
        return self._future

    def _settle(self, response: R) -> None:
        if self._response is None:
            self._response = response
            if self._future is not None and not self._future.done():
                self._future.set_result(response)


def as_it_is(answer: R) -> R:
    """For an answer that is the response already."""
    return answer


async def all_of(outcomes: Sequence[R | asyncio.Future[R]]) -> list[R]:
    """The outcomes in their order, when the last one is there. They go on by themselves; cancelling this loses nothing of them."""
    found: list[R] = []
    async for part in in_slices(outcomes, OUTCOMES_A_SLICE):
        found += [await asyncio.shield(outcome) if asyncio.isfuture(outcome) else outcome for outcome in part]
    return found
