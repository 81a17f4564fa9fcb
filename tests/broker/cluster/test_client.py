"""How a cluster is asked: a question goes on to another broker, a change does not once it was sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from millrace.broker.cluster.client import AnswerLost, ClusterClient, NobodyAnswers
from millrace.broker.cluster.draining import drained_of, set_drained
from millrace.kraft.commands.takers import CORDONED
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from millrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from millrace.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from millrace.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from millrace.runtime.errors import Unavailable
from millrace.runtime.net import LoopNet
from millrace.runtime.rand import Rand
from tests.kraft.build import run
from tests.kraft.peers.listener import MemberConnection
from tests.sim.loop import SimLoop, run_simulation
from tests.sim.net import SimNet

HOST, SOON_S = "127.0.0.1", 0.2


class Brokers:
    """Two: the first does what it is asked, and its answers are lost; the second knows of that."""

    def __init__(self) -> None:
        self.addresses: list[tuple[str, int]] = []
        self.asked: list[tuple[int, str]] = []
        self.registered = {3}

    async def answer(self, number: int, request: Any) -> Any:
        self.asked.append((number, type(request).__name__.removesuffix("Request")))
        response: Any = DescribeClusterResponse(
            brokers=[DescribeClusterBroker(1 + at, *one, None) for at, one in enumerate(self.addresses)]
        )
        if isinstance(request, UnregisterBrokerRequest):
            is_known = request.broker_id in self.registered
            self.registered.discard(request.broker_id)
            response = UnregisterBrokerResponse(
                error_code=0 if is_known else int(ErrorCode.BROKER_ID_NOT_REGISTERED)
            )
        if isinstance(request, DescribeConfigsRequest):
            result = DescribeConfigsResult(configs=[DescribeConfigsResourceResult(CORDONED, "*")])
            if request.resources[0].resource_name != str(number + 1):  # as of any other broker's settings
                result = DescribeConfigsResult(int(ErrorCode.INVALID_REQUEST), "Unexpected broker id")
            response = DescribeConfigsResponse(results=[result])
        if isinstance(request, IncrementalAlterConfigsRequest):
            raise TimeoutError  # the connection ends behind it
        if number == 0:
            await asyncio.Event().wait()
        return response


@asynccontextmanager
async def two_brokers() -> AsyncIterator[Brokers]:
    brokers, loop = Brokers(), asyncio.get_running_loop()
    servers = []
    for number in range(2):

        def answered(number: int = number) -> MemberConnection:
            return MemberConnection(lambda request: brokers.answer(number, request))

        servers.append(await loop.create_server(answered, HOST, 0))
        brokers.addresses.append((HOST, servers[-1].sockets[0].getsockname()[1]))
    try:
        yield brokers
    finally:
        for server in servers:
            server.close()


def test_a_change_whose_answer_is_lost_is_sent_to_one_alone() -> None:
    """Another would say that there is nothing to be done, of what was done; a question goes on to it."""

    async def main() -> None:
        async with two_brokers() as brokers, ClusterClient(LoopNet(), brokers.addresses) as client:
            with pytest.raises(AnswerLost, match=r"UnregisterBroker was not answered within 0\.2 s"):
                await client.change(UnregisterBrokerRequest(3), SOON_S)
            assert brokers.asked == [(0, "UnregisterBroker")]
            assert not brokers.registered
            assert isinstance(await client.ask(DescribeClusterRequest(), SOON_S), DescribeClusterResponse)
            assert brokers.asked[1:] == [(0, "DescribeCluster"), (1, "DescribeCluster")]

    run(main())


def test_who_gives_no_answer_is_not_known_to_be_drained() -> None:
    """Nor not to be."""

    async def main() -> None:
        async with two_brokers() as brokers, ClusterClient(LoopNet(), brokers.addresses[1:]) as client:
            assert await drained_of(client, [1, 2]) == (frozenset([2]), frozenset([1]))

    run(main())


def test_nor_is_one_for_whom_another_answers() -> None:
    """It was started again elsewhere, and who has its address now refuses to speak for it."""

    async def main() -> None:
        async with two_brokers() as brokers, ClusterClient(LoopNet(), brokers.addresses[1:]) as client:
            await client.describe()
            client._known[5] = client._known[2]
            assert await drained_of(client, [2, 5]) == (frozenset([2]), frozenset([5]))

    run(main())


@pytest.mark.parametrize("is_drained", [True, False])
def test_a_drain_whose_answer_is_lost_is_not_known_to_be_done(is_drained: bool) -> None:
    """One that was not sent is not done."""

    async def main() -> None:
        async with two_brokers() as brokers, ClusterClient(LoopNet(), brokers.addresses[1:]) as client:
            with pytest.raises(AnswerLost):
                await set_drained(client, 2, is_drained=is_drained)
            assert brokers.asked[-1] == (1, "IncrementalAlterConfigs")
            client._known[2] = HOST, 1
            with pytest.raises(Unavailable) as refused:
                await set_drained(client, 2, is_drained=is_drained)
            assert not isinstance(refused.value, AnswerLost)

    run(main())


def test_a_change_goes_to_whoever_can_be_reached() -> None:
    """It was not sent to one that takes no connection."""

    async def main() -> None:
        async with two_brokers() as brokers:
            nobody, answers = (HOST, 1), brokers.addresses[1]
            async with ClusterClient(LoopNet(), [nobody, answers]) as client:
                response = await client.change(UnregisterBrokerRequest(3), SOON_S)
                assert response.error_code == 0
            assert brokers.asked == [(1, "UnregisterBroker")]
            async with ClusterClient(LoopNet(), [nobody]) as client:
                with pytest.raises(NobodyAnswers):
                    await client.change(UnregisterBrokerRequest(3), SOON_S)

    run(main())


def test_a_broker_that_is_dead_is_not_waited_for_before_each_question() -> None:
    """Where another answers: that one is asked first from then on, and again the others once it is gone."""

    async def main(loop: SimLoop) -> None:
        net, dead, alive = SimNet(loop, Rand(b"net"), lambda *words: None), ("dead", 1), ("alive", 1)
        asked: list[str] = []

        def answering(name: str) -> MemberConnection:
            async def answer(request: Any) -> Any:
                asked.append(name)
                return DescribeClusterResponse()

            return MemberConnection(answer)

        listener = await net.host("alive").listen(lambda: answering("alive"), "", 1)
        async with ClusterClient(net.host("a"), [dead, alive]) as client:
            began_s = loop.time()
            for _ in range(20):
                await client.ask(DescribeClusterRequest())
            assert loop.time() - began_s < 1.0
            await net.host("dead").listen(lambda: answering("dead"), "", 1)
            listener.close()
            net.sever("a", "alive")
            await client.ask(DescribeClusterRequest(), 1.0)
            assert asked == ["alive"] * 20 + ["dead"]

    run_simulation(main)
