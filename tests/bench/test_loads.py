"""Clients that benchmarks and the soak send with: a refusal is never counted as an answer."""

from __future__ import annotations

import asyncio

import pytest

from millrace.protocol.apis import API
from millrace.protocol.codec import encode_response
from millrace.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from tests.bench.produce_load import PRODUCE_VERSION, AnswerCheck, ProduceLoad, batch_of, produce_frame


def answer(codes: list[int], offset: int = 0) -> bytes:
    """As on the wire, its size before it."""
    parts = [PartitionProduceResponse(index, code, offset) for index, code in enumerate(codes)]
    response = ProduceResponse([TopicProduceResponse("t", partition_responses=parts)])
    return b"".join(encode_response(API[0], PRODUCE_VERSION, 1, response))


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("code", [1, 6, 87, -1, 256])
def test_every_error_code_is_looked_at(place: int, code: int) -> None:
    """Of every partition, in the first answer and behind others, whatever the offsets are."""
    bad = [0, 0, 0]
    bad[place] = code
    check = AnswerCheck()
    for offset in (0, 1, 1 << 40):
        check.check(answer([0, 0, 0], offset)[4:])
    for looked in (check, AnswerCheck()):
        with pytest.raises(AssertionError, match=f"error_code={code}"):
            looked.check(answer(bad, 7)[4:])


def test_an_answer_of_another_size_is_decoded() -> None:
    """One partition less than asked for says so by its size; none at all is no answer."""
    check = AnswerCheck()
    check.check(answer([0, 0])[4:])
    check.check(answer([0])[4:])
    with pytest.raises(AssertionError):
        check.check(answer([])[4:])


async def serve(refused: int) -> None:
    """A load of twenty requests and more against a server that refuses one of them, the `refused`-th."""
    size_bytes, count = len(produce_frame("t", 0, batch_of(1, 100))), 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        while await reader.read(size_bytes):
            count += 1
            writer.write(answer([6 if count == refused else 0], count))
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1")
    load = await ProduceLoad(
        server.sockets[0].getsockname()[1], [produce_frame("t", 0, batch_of(1, 100))], 1
    ).start()
    while count < (refused or 20):  # noqa: ASYNC110  (another connection)
        await asyncio.sleep(0.01)
    try:
        await load.stop()
    finally:
        server.close()


def test_one_refusal_among_many_ends_the_load() -> None:
    """Neither first nor at a round number; what was refused is what `stop` says."""
    asyncio.run(serve(0))
    with pytest.raises(AssertionError, match="error_code=6"):
        asyncio.run(serve(13))
