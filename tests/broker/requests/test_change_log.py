"""The lines about changes: how many there are at most, and how long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from millrace.broker.requests import change_log
from millrace.broker.requests.change_log import CHANGES, LINES_MAX, NAMES_MAX, ChangeLog
from millrace.broker.requests.dispatch import Late
from millrace.broker.requests.request import ConnectionInfo, RequestContext
from millrace.protocol.apis import API
from millrace.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from millrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tests.broker.others import Others
from tests.broker.work import new_work

CONTEXT = RequestContext(42, 2, 1, "tool", ConnectionInfo(1, "PLAINTEXT", "h", 1, "10.0.0.7", 555), new_work)


def deleting(*codes: int) -> Callable[..., Any]:
    results = [DeletableGroupResult(f"g{number}", code) for number, code in enumerate(codes)]

    async def handle(context: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
        return DeleteGroupsResponse(results=results)

    return handle


def lines_of(caplog: pytest.LogCaptureFixture, handle: Any, times: int = 1) -> list[str]:
    caplog.set_level(logging.INFO, change_log.__name__)

    async def main() -> None:
        found = ChangeLog().wrap({42: Late(lambda: handle)})[42]
        assert isinstance(found, Late)
        made = found.make()
        for _ in range(times):
            answer = await made(CONTEXT, DeleteGroupsRequest())
            assert isinstance(answer, DeleteGroupsResponse)

    asyncio.run(main())
    return [record.getMessage() for record in caplog.records]


def test_what_was_done_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """And what was refused is not."""
    assert lines_of(caplog, deleting(0, 69, 0)) == ["groups deleted by client 'tool' at 10.0.0.7:555: g0, g2"]


def test_nothing_done_is_no_line(caplog: pytest.LogCaptureFixture) -> None:
    """All was refused."""
    assert lines_of(caplog, deleting(69)) == []


def test_a_wide_request_is_one_short_line(caplog: pytest.LogCaptureFixture) -> None:
    """The first names, and how many more there are."""
    (line,) = lines_of(caplog, deleting(*[0] * (NAMES_MAX + 5)))
    assert line.endswith(f"g{NAMES_MAX - 1} and 5 more")


def test_a_request_of_many_long_names_is_one_short_line() -> None:
    """A topic's configuration that nobody knows may be deleted: 3 MB of such names made a line of 6 MB, and
    the loop stood for it."""
    names = [AlterableConfig(f"{number}" + "x" * 30_000, 1, None) for number in range(100)]
    resource = AlterConfigsResource(2, "t" * 30_000, names)
    said = CHANGES[44].say(resource)
    assert said.startswith("topic tttt")
    assert "... deleted" in said
    assert said.endswith(" and 90 more")
    assert len(said) < 2_000
    assert len(CHANGES[33].say(resource)) < 2_000


def test_only_what_is_written_is_put_into_words(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request of 10,000 names would hold the loop for the words of all of them."""
    said: list[str] = []

    def say(name: str) -> str:
        said.append(name)
        return name

    monkeypatch.setattr(change_log, "CHANGES", {42: replace(CHANGES[42], say=say)})
    lines_of(caplog, deleting(*[0] * (5 * NAMES_MAX)))
    assert len(said) == NAMES_MAX


def test_lines_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """A client that makes and deletes in a loop does not fill a disk."""
    assert len(lines_of(caplog, deleting(0), times=3 * LINES_MAX)) == LINES_MAX


def test_a_wide_answer_is_looked_at_in_chunks(caplog: pytest.LogCaptureFixture) -> None:
    """Others have the loop meanwhile, also where nothing was done; of what a request names twice, each answer
    has its own."""
    caplog.set_level(logging.INFO, change_log.__name__)

    async def main() -> None:
        resources = [AlterConfigsResource(2, f"t{number}", []) for number in range(20_000)]
        for code in (0, 3):
            answers = [AlterConfigsResourceResponse(code, None, 2, one.resource_name) for one in resources]
            answers[2].error_code = 3
            answer = IncrementalAlterConfigsResponse(responses=answers)

            async def handle(context: RequestContext, request: Any, answer: Any = answer) -> Any:
                return answer

            wrapped: Any = ChangeLog().wrap({44: handle})
            async with Others() as others:
                request = IncrementalAlterConfigsRequest([resources[0], resources[1], *resources[1:]])
                assert await wrapped[44](CONTEXT, request) is answer
            assert others.turns >= 8

    asyncio.run(main())
    (line,) = [record.getMessage() for record in caplog.records if record.name == change_log.__name__]
    assert "topic t1: none left, topic t3:" in line
    assert line.endswith(" and 19989 more")


@pytest.mark.parametrize("key", CHANGES)
def test_an_empty_answer_changes_nothing(key: int) -> None:
    """Each change bears what a response without results is."""
    assert (
        list(
            CHANGES[key].done(
                API[key].request_type(),
                API[key].response_type(error_code=7) if key in (57, 64) else API[key].response_type(),
            )
        )
        == []
    )


def test_a_handler_keeps_its_own_refusals() -> None:
    """The dispatcher looks for them on what it is given."""

    class Handler:
        def handle(self, context: RequestContext, request: Any) -> Any:
            return None

        def refuse(self, request: Any, code: int) -> str:
            return "refused"

    wrapped: Any = ChangeLog().wrap({42: Handler().handle, 0: Handler().handle})
    assert wrapped[42].__self__.refuse(None, 1) == "refused"
    assert isinstance(wrapped[0].__self__, Handler), "other APIs are left alone"
