"""MetadataImage: everything the cluster agreed on up to one offset of the metadata log. Immutable, replaced
whole.

Versions share what did not change (sorted_map.py, tables/ranges.py), so that a commit costs microseconds
whatever the size. Changes are made by a delta (delta.py) alone. Not here: who may read what (the broker).

Kept true: equal offset means equal image, on every node and after every restart.
"""

from __future__ import annotations

from millrace.kraft.tables.brokers import NO_BROKERS, Brokers
from millrace.kraft.tables.claims import NO_NODE_CLAIMS, NodeClaims
from millrace.kraft.tables.configs import NO_CONFIGS, Configs
from millrace.kraft.tables.failovers import NO_FAILOVERS, Failovers
from millrace.kraft.tables.features import Features
from millrace.kraft.tables.objects import NO_OBJECTS, Objects
from millrace.kraft.tables.streams import NO_STREAMS, Streams
from millrace.kraft.tables.topics import NO_TOPICS, Topics
from millrace.kraft.tables.wals import NO_NODE_WALS, NodeWals
from millrace.protocol.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class MetadataImage:
    offset: int  # exclusive: the records below it are in the image
    epoch: int  # of the last of them; -1 when there is none
    features: Features
    brokers: Brokers
    topics: Topics
    configs: Configs
    producer_ids: int  # the next one to be given away
    streams: Streams
    objects: Objects
    wals: NodeWals = NO_NODE_WALS
    claims: NodeClaims = NO_NODE_CLAIMS
    failovers: Failovers = NO_FAILOVERS


EMPTY_IMAGE = MetadataImage(0, -1, Features(), NO_BROKERS, NO_TOPICS, NO_CONFIGS, 0, NO_STREAMS, NO_OBJECTS)
