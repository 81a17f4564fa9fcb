"""Data requests that name partitions without end, real ones or not, and requests that name things again and
again: a part of the mix (stall_mix.py), with `count` names each.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress

from millrace.protocol.apis import NAMED
from millrace.protocol.codec import encode_request
from millrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from millrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millrace.protocol.primitives import GROUP_ELEMENTS_MAX
from tests.live.client import VERSION_BY_NAME, Client

WAITING = 400
Step = Callable[[Client], object]


def wide_steps(count: int) -> Iterator[tuple[str, Step]]:
    """Data requests that name partitions without end, real ones or not, and names again and again."""
    again = [CreatableTopic("same", 1, 1)] * count
    yield (
        "CreateTopics, one name again and again",
        lambda client: client.ask("CreateTopics", CreateTopicsRequest(again)),
    )
    yield (
        "Produce, partitions that there are not",
        lambda client: client.ask("Produce", wide_produce(count), VERSION_BY_NAME),
    )
    yield (
        "Fetch, partitions that there are not",
        lambda client: client.ask("Fetch", wide_fetch(range(1, count)), VERSION_BY_NAME),
    )
    yield (
        "Fetch, one again and again, waiting",
        lambda client: client.ask("Fetch", wide_fetch([0] * count, wait_ms=300), VERSION_BY_NAME),
    )
    yield "Fetch sessions, opened, added to, dropped", lambda client: sessions(client, count)
    yield "JoinGroup, protocols without end", lambda client: join_wide(client, count)
    yield "Fetches that one record wakes", wake_many
    yield "frames of nothing", frames_of_nothing


def wide_produce(count: int) -> ProduceRequest:
    asked = [PartitionProduceData(index, None) for index in range(1, count)]
    return ProduceRequest(None, -1, 60_000, [TopicProduceData("beside", partition_data=asked)])


def wide_fetch(
    indexes: Iterable[int],
    *,
    wait_ms: int = 0,
    session_id: int = 0,
    epoch: int = -1,
    forgotten: Iterable[int] = (),
) -> FetchRequest:
    asked = [FetchPartition(index, -1, 0, partition_max_bytes=100) for index in indexes]
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1 << 30 if wait_ms else 0,
        max_bytes=1 << 30,
        session_id=session_id,
        session_epoch=epoch,
        topics=[FetchTopic("beside", partitions=asked)],
        forgotten_topics_data=[ForgottenTopic("beside", partitions=list(forgotten))],
    )


def sessions(client: Client, count: int) -> None:
    """Half of its partitions come with the second request, half go with the third, and the rest with the
    session."""
    half = count // 2
    opened = client.ask("Fetch", wide_fetch(range(half), epoch=0), VERSION_BY_NAME)
    asked = [
        wide_fetch(range(half, count), epoch=1),
        wide_fetch((), epoch=2, forgotten=range(half)),
        wide_fetch((), epoch=-1),
    ]
    for request in asked:
        request.session_id = opened.session_id
        answer = client.ask("Fetch", request, VERSION_BY_NAME)
        assert not answer.error_code, answer.error_code


def wide_join(count: int) -> JoinGroupRequest:
    protocols = [JoinGroupRequestProtocol(f"p{index}", b"") for index in range(count)]
    return JoinGroupRequest("endless", 30_000, 60_000, protocol_type="consumer", protocols=protocols)


def join_wide(client: Client, count: int) -> None:
    """As many as a request may hold, and, where that is less, all of them on a connection that ends so."""
    client.ask("JoinGroup", wide_join(min(count, GROUP_ELEMENTS_MAX - 10)), 5)
    if count >= GROUP_ELEMENTS_MAX:
        with suppress(ConnectionError), Client(address_of(client), 120.0) as other:
            other.ask("JoinGroup", wide_join(count), 5)


def wake_many(client: Client) -> None:
    """Many connections wait for the end of a partition."""
    client.create("woken")
    request = FetchRequest(max_wait_ms=30_000, min_bytes=1, max_bytes=1000, session_epoch=-1)
    request.topics = [FetchTopic("woken", partitions=[FetchPartition(0, -1, 0, partition_max_bytes=1000)])]
    with ExitStack() as stack:
        waiting = [stack.enter_context(Client(address_of(client), 120.0)) for _ in range(WAITING)]
        for one in waiting:
            one.socket.sendall(encode_request(NAMED["Fetch"], VERSION_BY_NAME, 1, "stalls", request))
        client.fetch([("beside", 0, 0)])  # what was sent before is being served
        client.produce("woken", [b"wakes"])
        for one in waiting:
            one.take_answer("Fetch", VERSION_BY_NAME)


def frames_of_nothing(client: Client) -> None:
    host, port = address_of(client).rsplit(":", 1)
    with suppress(OSError), socket.create_connection((host, int(port))) as raw:
        raw.sendall(bytes(4 * 100_000))
        raw.recv(1)


def address_of(client: Client) -> str:
    host, port = client.socket.getpeername()[:2]
    return f"{host}:{port}"
