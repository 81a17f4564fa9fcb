"""ClusterClient: asks a cluster in Kafka's protocol, whichever of its brokers answers.

    async with ClusterClient(net, [("host", 9092)]) as client:
        response = await client.ask(DescribeClusterRequest())
        response = await client.ask_node(3, ListOffsetsRequest(...))      that very broker
        response = await client.change(UnregisterBrokerRequest(3))        sent to one alone
        response = await client.change_at(3, IncrementalAlterConfigsRequest(...))

Not here: what the answers mean (view.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self

from millrace.kraft.peers.connection import NotSent, PeerConnection
from millrace.kraft.peers.table import PeerTable
from millrace.kraft.peers.ways import Ways
from millrace.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from millrace.runtime.errors import Unavailable, in_words
from millrace.runtime.net import Net

ANSWER_S: Final = 10.0
CLIENT_ID: Final = "millrace cluster"
Address = tuple[str, int]


class NobodyAnswers(Unavailable):
    """No broker of the cluster does; the argument says why, address by address."""


class AnswerLost(Unavailable):
    """A change was sent, and no answer came: whether it was done is unknown. The argument says who was
    asked."""


class ClusterClient:
    """`bootstrap`: brokers that are known, one at least. One request at a time and broker."""

    def __init__(self, net: Net, bootstrap: Sequence[Address]) -> None:
        self._peers = PeerTable(net)
        self._ways: Ways[Address] = self._peers.ways("cluster", lambda address: address, CLIENT_ID)
        self._bootstrap = tuple(bootstrap)
        self._known: dict[int, Address] = {}  # brokers, as the cluster told last
        self._answering: tuple[Address, ...] = ()  # who did last: the dead are not waited for again

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._peers.close()

    async def ask(self, request: Any, answer_s: float = ANSWER_S) -> Any:
        """The response of the first broker that answers within `answer_s`. Raises NobodyAnswers, WireError
        where it does not serve that."""
        return await self._ask_any(request, answer_s, is_change=False)

    async def change(self, request: Any, answer_s: float = ANSWER_S) -> Any:
        """As `ask`, of what changes something: once it was sent no other broker is asked, which would judge
        it as if nothing had been done, or do it twice. Raises AnswerLost, NobodyAnswers, WireError."""
        return await self._ask_any(request, answer_s, is_change=True)

    async def _ask_any(self, request: Any, answer_s: float, *, is_change: bool) -> Any:
        reasons = []
        for address in dict.fromkeys((*self._answering, *self._bootstrap, *self._known.values())):
            connection = None
            try:
                connection = await self._ways.connected(address, is_patient=True)
                response = await connection.ask(request, answer_s)
                self._answering = (address,)
                return response
            except Unavailable as error:
                if is_change and connection is not None and not isinstance(error, NotSent):
                    raise AnswerLost(in_words(error)) from None
                reasons.append(in_words(error))
        raise NobodyAnswers("; ".join(reasons))

    async def ask_node(self, node_id: int, request: Any, answer_s: float = ANSWER_S) -> Any:
        """The response of this broker. Raises Unavailable, WireError."""
        return await (await self._connected_to(node_id)).ask(request, answer_s)

    async def change_at(self, node_id: int, request: Any, answer_s: float = ANSWER_S) -> Any:
        """As `ask_node`, of what changes something. Raises AnswerLost once it was sent, Unavailable before,
        WireError."""
        connection = await self._connected_to(node_id)
        try:
            return await connection.ask(request, answer_s)
        except NotSent:
            raise
        except Unavailable as error:
            raise AnswerLost(in_words(error)) from None

    async def describe(self) -> DescribeClusterResponse:
        """Every registered broker, also one that is fenced. Raises as `ask` does."""
        response = await self.ask(DescribeClusterRequest(include_fenced_brokers=True))
        assert isinstance(response, DescribeClusterResponse)
        self._known = {broker.broker_id: (broker.host, broker.port) for broker in response.brokers}
        return response

    async def _connected_to(self, node_id: int) -> PeerConnection:
        if node_id not in self._known:
            await self.describe()
        if node_id not in self._known:
            raise NobodyAnswers(f"the cluster knows no broker {node_id}")
        return await self._ways.connected(self._known[node_id], is_patient=True)
