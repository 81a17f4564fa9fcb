"""The explicit list of handlers: what this broker serves, on one screen. ApiVersions shows these keys and no
others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib import import_module
from typing import Any

from millrace.broker.config import BrokerSettings
from millrace.broker.controller_client import ControllerClient
from millrace.broker.coordinators.groups.coordinator import GroupCoordinator
from millrace.broker.handlers.api_versions import ApiVersions
from millrace.broker.handlers.fetch import Fetch
from millrace.broker.handlers.metadata import Metadata
from millrace.broker.handlers.produce import Produce
from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.network.listeners import Listeners
from millrace.broker.network.memory import RequestBudget
from millrace.broker.partitions.directory import PartitionDirectory
from millrace.broker.partitions.unpacking import Unpacking
from millrace.broker.producer_ids import ProducerIds
from millrace.broker.requests.api_traits import keys
from millrace.broker.requests.dispatch import Late
from millrace.broker.requests.fetch_sessions import FetchSessions, partitions_within
from millrace.broker.requests.forwarding import Forwarding
from millrace.broker.requests.request import Handle
from millrace.broker.requests.transaction_refusals import TransactionRefusals
from millrace.broker.settings.log_levels import LogLevels
from millrace.broker.topic_creation import TopicCreation
from millrace.kraft.channel import ControllerChannel
from millrace.kraft.commands.decision import ConfigRules
from millrace.kraft.topic_configs import ConfigLookup
from millrace.protocol.dataclass import dataclass
from millrace.runtime.bundle import Runtime
from millrace.s3stream.storage import Storage

FORWARDED = keys(lambda traits: traits.is_forwarded)  # by a handler of their own where they have one
ALTER_CONFIGS = (33, 44)
# SASL, ACLs, delegation tokens, quotas, SCRAM users, transactions, the newer groups: what exists of them is
# nothing
TURNED_OFF = frozenset(
    {17, *range(24, 32), 36, *range(38, 42), *range(48, 52), 65, 66, 68, 69, 76, 77, 78, 79, *range(83, 95)}
)


@dataclass(frozen=True, slots=True)
class Parts:
    """What handlers are made of."""

    settings: BrokerSettings
    runtime: Runtime
    channel: ControllerChannel
    cache: MetadataCache
    client: ControllerClient
    storage: Storage
    directory: PartitionDirectory
    creation: TopicCreation
    lookup: ConfigLookup
    groups: GroupCoordinator
    unpacking: Unpacking
    budget: RequestBudget
    configs: ConfigRules
    listeners: Listeners
    levels: LogLevels
    kraft_version: Callable[[], int]


def build_handlers(parts: Parts) -> dict[int, Handle | Late]:
    """By API key. Those on the hot path are made now, the others when they are first asked for."""
    settings, cache, directory = parts.settings, parts.cache, parts.directory
    clock, rand, yield_queue = parts.runtime.clock, parts.runtime.rand, parts.runtime.yield_queue
    session_ids = rand.split("fetch sessions")
    sessions = FetchSessions(
        lambda: 1 + session_ids.below((1 << 31) - 1),
        slots=settings.fetch.session_slots,
        partitions_max=partitions_within(settings.memory.requests_bytes),
    )
    groups = parts.groups
    no_transactions = TransactionRefusals(asyncio.get_running_loop().time)
    forwarding = Forwarding(parts.channel, settings.request_timeout_ms)
    handlers: dict[int, Handle | Late] = {
        0: Produce(directory, cache, parts.storage, clock, parts.unpacking, yield_queue).handle,
        1: Fetch(
            directory,
            cache,
            sessions,
            yield_queue,
            response_bytes_max=settings.fetch.response_bytes_max,
            share_bytes=parts.budget.reply_share,
        ).handle,
        3: Metadata(cache, parts.creation, auto_create=settings.topics.is_auto_created).handle,
        2: late("list_offsets.ListOffsets", directory, parts.unpacking),
        8: late("offset_commit.OffsetCommit", groups, cache),
        9: late("offset_fetch.OffsetFetch", groups, cache),
        10: late("find_coordinator.FindCoordinator", cache, parts.creation, no_transactions),
        11: late("join_group.JoinGroup", groups),
        12: late("heartbeat.Heartbeat", groups),
        13: late("leave_group.LeaveGroup", groups),
        14: late("sync_group.SyncGroup", groups),
        15: late("describe_groups.DescribeGroups", groups),
        16: late("list_groups.ListGroups", groups),
        21: late("delete_records.DeleteRecords", directory, clock),
        22: late("init_producer_id.InitProducerId", ProducerIds(parts.client), no_transactions),
        23: late("offset_for_leader_epoch.OffsetForLeaderEpoch", directory),
        19: late("create_topics.CreateTopics", forwarding),
        20: late("delete_topics.DeleteTopics", forwarding, settings.topics.is_deletable),
        32: late(
            "describe_configs.DescribeConfigs", cache, parts.lookup, settings.shown, parts.levels.listed
        ),
        **{
            key: late(
                "alter_configs.AlterConfigs", forwarding, cache, parts.configs, parts.listeners, parts.levels
            )
            for key in ALTER_CONFIGS
        },
        34: late("alter_replica_log_dirs.AlterReplicaLogDirs", cache, settings.metadata_dir),
        35: late("describe_log_dirs.DescribeLogDirs", cache, directory, parts.runtime.disk, settings),
        42: late("delete_groups.DeleteGroups", groups),
        47: late("offset_delete.OffsetDelete", groups, cache),
        57: late("update_features.UpdateFeatures", forwarding),
        60: late("describe_cluster.DescribeCluster", cache),
        61: late("describe_producers.DescribeProducers", directory),
        74: late("list_config_resources.ListConfigResources", cache),
        75: late("describe_topic_partitions.DescribeTopicPartitions", cache),
        530: late("read_owed_range.ReadOwedRange", parts.storage),
        **{key: late("turned_off.TurnedOff", key) for key in sorted(TURNED_OFF)},
    }
    handlers |= {key: late("forward.Forward", forwarding) for key in sorted(FORWARDED - handlers.keys())}
    shown = handlers, cache.cluster_id, settings.node_id, lambda: cache.image
    handlers[18] = ApiVersions(*shown, kraft_version=parts.kraft_version).handle
    return handlers


def late(place: str, *collaborators: Any) -> Late:
    """A handler of this package, `module.Class`, made and loaded when its API is first asked for."""
    module, name = place.split(".")

    def make() -> Handle:
        kind = getattr(import_module(f"millrace.broker.handlers.{module}"), name)
        handle: Handle = kind(*collaborators).handle
        return handle

    return Late(make)
