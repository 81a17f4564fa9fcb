"""APIs of the newer groups: consumer (KIP-848), share (KIP-932) and streams (KIP-1071), as Kafka answers them
where group.version, share.version and streams.version are 0.

ConsumerGroupHeartbeat 68, ConsumerGroupDescribe 69, share groups 76 to 79 and 83 to 87 and 90 to 92, streams
groups 88, 89 and 93, in all versions. A client that finds no such API at all may wait for one in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages import (
    alter_share_group_offsets,
    consumer_group_describe,
    consumer_group_heartbeat,
    delete_share_group_offsets,
    delete_share_group_state,
    describe_share_group_offsets,
    initialize_share_group_state,
    read_share_group_state,
    read_share_group_state_summary,
    share_acknowledge,
    share_fetch,
    share_group_describe,
    share_group_heartbeat,
    streams_group_describe,
    streams_group_heartbeat,
    streams_group_topology_description_update,
    write_share_group_state,
)

NO_CONSUMER_PROTOCOL = (
    "the consumer group protocol of KIP-848 is not served by this broker: set group.protocol=classic"
)
NO_SHARE_GROUPS = "share groups are not served by this broker"
NO_STREAMS_PROTOCOL = (
    "the streams group protocol of KIP-1071 is not served by this broker: set group.protocol=classic"
)


def _refused(response: Callable[..., Any], text: str) -> Callable[[Any], Any]:
    return lambda request: response(error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=text)


def _refused_by_group(
    response: Callable[..., Any],
    group: Callable[..., Any],
    text: str,
    code: int = ErrorCode.UNSUPPORTED_VERSION,
) -> Callable[[Any], Any]:
    """`text` has a place for the group's name, or none."""
    return lambda request: response(
        groups=[
            group(error_code=code, error_message=text.format(name), group_id=name)
            for name in request.group_ids
        ]
    )


def _refused_by_partition(
    response: Callable[..., Any], topic: Callable[..., Any], partition: Callable[..., Any]
) -> Callable[[Any], Any]:
    """What brokers ask each other about the state of a share group."""

    def refuse(partitions: Iterable[Any]) -> list[Any]:
        return [
            partition(each.partition, ErrorCode.UNSUPPORTED_VERSION, NO_SHARE_GROUPS) for each in partitions
        ]

    return lambda request: response(
        results=[topic(each.topic_id, refuse(each.partitions)) for each in request.topics]
    )


def _describe_share_offsets(
    request: describe_share_group_offsets.DescribeShareGroupOffsetsRequest,
) -> describe_share_group_offsets.DescribeShareGroupOffsetsResponse:
    group = describe_share_group_offsets.DescribeShareGroupOffsetsResponseGroup
    refused = [
        group(asked.group_id, [], ErrorCode.UNSUPPORTED_VERSION, NO_SHARE_GROUPS) for asked in request.groups
    ]
    return describe_share_group_offsets.DescribeShareGroupOffsetsResponse(groups=refused)


ANSWERS: dict[int, Callable[[Any], Any]] = {
    68: _refused(consumer_group_heartbeat.ConsumerGroupHeartbeatResponse, NO_CONSUMER_PROTOCOL),
    # Kafka says the same of a classic group, and its tools ask again with DescribeGroups.
    69: _refused_by_group(
        consumer_group_describe.ConsumerGroupDescribeResponse,
        consumer_group_describe.DescribedGroup,
        "Group {} not found.",
        ErrorCode.GROUP_ID_NOT_FOUND,
    ),
    76: _refused(share_group_heartbeat.ShareGroupHeartbeatResponse, NO_SHARE_GROUPS),
    77: _refused_by_group(
        share_group_describe.ShareGroupDescribeResponse, share_group_describe.DescribedGroup, NO_SHARE_GROUPS
    ),
    78: _refused(share_fetch.ShareFetchResponse, NO_SHARE_GROUPS),
    79: _refused(share_acknowledge.ShareAcknowledgeResponse, NO_SHARE_GROUPS),
    83: _refused_by_partition(
        initialize_share_group_state.InitializeShareGroupStateResponse,
        initialize_share_group_state.InitializeStateResult,
        initialize_share_group_state.PartitionResult,
    ),
    84: _refused_by_partition(
        read_share_group_state.ReadShareGroupStateResponse,
        read_share_group_state.ReadStateResult,
        read_share_group_state.PartitionResult,
    ),
    85: _refused_by_partition(
        write_share_group_state.WriteShareGroupStateResponse,
        write_share_group_state.WriteStateResult,
        write_share_group_state.PartitionResult,
    ),
    86: _refused_by_partition(
        delete_share_group_state.DeleteShareGroupStateResponse,
        delete_share_group_state.DeleteStateResult,
        delete_share_group_state.PartitionResult,
    ),
    87: _refused_by_partition(
        read_share_group_state_summary.ReadShareGroupStateSummaryResponse,
        read_share_group_state_summary.ReadStateSummaryResult,
        read_share_group_state_summary.PartitionResult,
    ),
    88: _refused(streams_group_heartbeat.StreamsGroupHeartbeatResponse, NO_STREAMS_PROTOCOL),
    89: _refused_by_group(
        streams_group_describe.StreamsGroupDescribeResponse,
        streams_group_describe.DescribedGroup,
        NO_STREAMS_PROTOCOL,
    ),
    90: _describe_share_offsets,
    91: _refused(alter_share_group_offsets.AlterShareGroupOffsetsResponse, NO_SHARE_GROUPS),
    92: _refused(delete_share_group_offsets.DeleteShareGroupOffsetsResponse, NO_SHARE_GROUPS),
    93: _refused(
        streams_group_topology_description_update.StreamsGroupTopologyDescriptionUpdateResponse,
        NO_STREAMS_PROTOCOL,
    ),
}
