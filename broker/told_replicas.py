"""Which leader and replicas clients are told of a partition while brokers are gone. Pure, of one image.

    its leader is fenced                                 no leader, as Kafka tells it, and the replica is
                                                         offline
    who led it before is gone, and has it open still     no leader, for the next one cannot open it; who is
                                                         gone is a replica beside that one, offline
    the log of a broker that is gone owes its small      no leader, for the next one reads them to open it;
      states, and it is not open                         replicas as above
    such a log owes other parts of it                    its leader, and who is gone as a replica beside that
                                                         one, offline
    its leader has no listener of the client's name      no leader, for this client cannot reach it, and the
                                                         replica is offline

So Kafka's tools and `millrace cluster` name what waits for a write-ahead log, and for whose. Where nobody can
recover that log, consumers are named a reader in the place of a leader, which is in no ISR and serves what
objects hold (partitions/reading_copies.py). Not here: what becomes of such partitions
(kraft/commands/leaders.py, partitions.py).
"""

from __future__ import annotations

from typing import NamedTuple

from millrace.kraft.commands.failovers import waiting_nodes
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.topics import PartitionState
from millrace.protocol.crc32c import crc32c


class Told(NamedTuple):
    leader: int  # -1: none
    replicas: list[int]
    offline: list[int]  # of these
    is_out_of_reach: bool = False  # it has a leader, which has no listener of the client's name
    reader: int = -1  # who serves what objects hold, as long as nobody can lead it; -1: none


class ToldReplicas:
    """`unreachable`: brokers without a listener of the client's name. `has_readers`: whether one is named."""

    def __init__(
        self,
        image: MetadataImage,
        unreachable: frozenset[int] = frozenset(),
        *,
        has_readers: bool = True,
    ) -> None:
        self._unreachable = unreachable
        self._streams = image.streams
        self._fenced = frozenset(broker.broker_id for broker in image.brokers if broker.is_fenced)
        # Who is fenced and starts, or has nothing in its log, holds nobody up.
        self._gone = frozenset(failover.node_id for failover in image.failovers)
        self._waiting = waiting_nodes(image) if self._gone else self._gone
        self._readers = (
            [
                broker.broker_id
                for broker in image.brokers
                if broker.is_usable and broker.broker_id not in unreachable
            ]
            if self._waiting and has_readers
            else []
        )

    def of(self, topic_id: bytes, index: int, state: PartitionState) -> Told:
        leader = -1 if state.leader in self._fenced else state.leader
        holders = dict.fromkeys(state.replicas)
        reader = -1
        if self._gone:
            for stream in self._streams.of_partition(topic_id, index):
                if stream.is_open and stream.node_id in self._gone:
                    holders[stream.node_id] = None
                owed = self._streams.owed.of_stream(stream.stream_id)
                holders |= {one.node_id: None for one in owed if one.node_id in self._gone}
            for node_id in self._streams.waits_for(topic_id, index, self._gone):
                leader = -1
                if node_id in self._waiting and self._readers:
                    reader = self._readers[crc32c(topic_id, index) % len(self._readers)]
        replicas = list(holders)
        offline = [one for one in replicas if one in self._fenced or one in self._unreachable]
        is_out_of_reach = leader in self._unreachable
        return Told(-1 if is_out_of_reach else leader, replicas, offline, is_out_of_reach, reader)
