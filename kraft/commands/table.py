"""The list of commands that the controller takes: who decides each, what it looks at, whether it makes the
log grow.

One table on one screen, by the request's name: deciders and their messages are imported when the first such
command comes, so that a start pays for what it uses. Not here: deciding (the modules beside this one),
refusing (refusals.py), committing (controller.py).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from millrace.kraft.commands.decision import Context, Decision, check_broker
from millrace.kraft.commands.refusals import refuse
from millrace.protocol.apis import NAMED, api_of
from millrace.protocol.dataclass import dataclass
from millrace.protocol.errors import KafkaError
from millrace.runtime.scheduling.yielding import Yielding

Decider = Callable[..., Any]  # gives a Decision, or Steps of one
Call = Callable[[Decider, Context, Any], Any]


@dataclass(frozen=True, slots=True)
class Long:
    """A command some of whose requests take long to decide: those are decided in steps."""

    is_long: Callable[[Any], bool]
    decide: Callable[[Context, Any], Yielding[Decision]]


@dataclass(frozen=True, slots=True)
class Command:
    """`steps` decides as `decide` does, with a pause after every few hundred of what the request names; a
    request that names less never pauses. `may_pass`: answered past all that waits, where it changes nothing
    and says nothing that is pending."""

    decide: Callable[[Context, Any], Decision]
    refuse: Callable[[Any, KafkaError], Any]
    is_growing: bool = False  # refused while the log's disk is full
    long: Long | None = None
    steps: Callable[[Context, Any], Yielding[Decision]] | None = None
    may_pass: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """`place` is module.function in this folder; `call` hands it what it looks at."""

    place: str
    call: Call
    is_growing: bool = False
    has_long: bool = False  # its module has `is_long` and `decide_yielding`
    is_yielding: bool = False  # its module has a generator of the function's name and `_yielding`
    may_pass: bool = False


def _plain(decide: Decider, context: Context, request: Any) -> Any:
    return decide(context.image, request)


def _timed(decide: Decider, context: Context, request: Any) -> Any:
    return decide(context.image, request, context.now_ms)


def _creating(decide: Decider, context: Context, request: Any) -> Any:
    return decide(context.image, request, context.creation)


def _placed(decide: Decider, context: Context, request: Any) -> Any:
    return decide(context.image, request, context.offset)


def _configuring(decide: Decider, context: Context, request: Any) -> Any:
    return decide(context.image, request, context.configs)


def _registering(decide: Decider, context: Context, request: Any) -> Any:
    has_session = context.hear is not None  # fenced until it says that it is ready
    at = context.cluster_id, context.offset
    decision = decide(context.image, request, *at, is_fenced=has_session, is_alone=context.is_alone)
    if context.hear is not None:
        context.hear(request.broker_id, decision.response.broker_epoch, True)
    return decision


def _beating(decide: Decider, context: Context, request: Any) -> Any:
    check_broker(context.image, request.broker_id, request.broker_epoch)
    has_session = context.hear is None or context.hear(
        request.broker_id, request.broker_epoch, not request.offline_log_dirs
    )
    decision = decide(context.image, request, has_session=has_session)
    known, committed = (image.brokers.get(request.broker_id) for image in (context.image, context.committed))
    # Whether it may end hangs on others, too.
    decision.is_of_committed = not decision.records and not request.want_shut_down and known == committed
    return decision


def _living(decide: Decider, context: Context, request: Any) -> Any:
    return decide(context.image, request, is_alive=context.is_alive(request.broker_id))


ROWS: Final[dict[str, Row]] = {
    # Kafka's own.
    "AddRaftVoter": Row("voters.refuse_change", _plain),
    "AllocateProducerIds": Row("brokers.decide_allocate_producer_ids", _plain, is_growing=True),
    "AlterConfigs": Row("configs.decide_alter_configs", _configuring, is_growing=True, is_yielding=True),
    "AlterPartitionReassignments": Row(
        "partitions.decide_alter_partition_reassignments", _plain, is_yielding=True
    ),
    "BrokerHeartbeat": Row("brokers.decide_heartbeat", _beating, may_pass=True),
    "BrokerRegistration": Row("brokers.decide_register_broker", _registering),
    "CreatePartitions": Row(
        "create_topics.decide_create_partitions", _creating, is_growing=True, is_yielding=True
    ),
    "CreateTopics": Row("create_topics.decide_create_topics", _creating, is_growing=True, is_yielding=True),
    "DeleteTopics": Row("delete_topics.decide_delete_topics", _timed, is_yielding=True),
    "ElectLeaders": Row("partitions.decide_elect_leaders", _plain, is_yielding=True),
    "IncrementalAlterConfigs": Row(
        "configs.decide_incremental_alter_configs", _configuring, is_growing=True, is_yielding=True
    ),
    "ListPartitionReassignments": Row(
        "partitions.decide_list_partition_reassignments", _plain, is_yielding=True
    ),
    "RemoveRaftVoter": Row("voters.refuse_change", _plain),
    "UnregisterBroker": Row("brokers.decide_unregister_broker", _living),
    "UpdateFeatures": Row("features.decide_update_features", _plain, is_growing=True),
    # Ours. A commit is bounded by what was prepared, so it passes when the disk is full.
    "AcceptWalLoss": Row("wals.decide_accept_wal_loss", _plain, is_growing=True),
    "BeginFailover": Row("failovers.decide_begin_failover", _placed),
    "ClaimNode": Row("claims.decide_claim_node", _plain),
    "CloseStreams": Row("streams.decide_close_streams", _plain),
    "CommitCompaction": Row("compaction.decide_commit_compaction", _timed, has_long=True),
    "CommitUpload": Row("objects.decide_commit_upload", _timed),
    "EndFailover": Row("failovers.decide_end_failover", _plain),
    "GetOpeningStreams": Row("streams.decide_get_opening_streams", _plain),
    "OpenPartitionStreams": Row("streams.decide_open_partition_streams", _plain, is_growing=True),
    "PrepareObjects": Row("objects.decide_prepare_objects", _timed, is_growing=True),
    "RegisterNodeWal": Row("wals.decide_register_node_wal", _plain),
    "RemoveObjects": Row("objects.decide_remove_objects", _plain),
    "SealStreams": Row("owed_ranges.decide_seal_streams", _timed),
    "TrimStreams": Row("streams.decide_trim_streams", _timed),
}


# They change nothing, however often they are decided.
QUESTIONS: Final = frozenset({"DescribeQuorum", "GetOpeningStreams", "ListPartitionReassignments"})
COMMAND_KEYS: Final = frozenset(NAMED[name].key for name in (*ROWS, "DescribeQuorum"))


def is_question(request: Any) -> bool:
    """Also what asks only whether a change would be taken."""
    return api_of(request).name in QUESTIONS or bool(getattr(request, "validate_only", False))


def _describe_quorum(context: Context, request: Any) -> Decision:
    return context.describe_quorum(request, context.now_ms)


def _decider(row: Row, suffix: str = "") -> Callable[[Context, Any], Any]:
    module, _, function = row.place.partition(".")
    decide: Decider = getattr(importlib.import_module(f"millrace.kraft.commands.{module}"), function + suffix)
    return lambda context, request: row.call(decide, context, request)


def _long(row: Row) -> Long | None:
    if not row.has_long:
        return None
    module = importlib.import_module(f"millrace.kraft.commands.{row.place.partition('.')[0]}")
    return Long(
        module.is_long,
        lambda context, request: module.decide_yielding(context.image, request, context.now_ms),
    )


class CommandTable(Mapping[type, Command]):
    """By request type; KeyError for what is no command."""

    def __init__(self) -> None:
        self._known: dict[type, Command] = {}

    def __getitem__(self, request_type: type) -> Command:
        command = self._known.get(request_type)
        if command is None:
            name = request_type.__name__.removesuffix("Request")
            if name == "DescribeQuorum":
                command = Command(_describe_quorum, refuse)
            else:
                row = ROWS[name]
                steps = _decider(row, "_yielding") if row.is_yielding else None
                command = Command(_decider(row), refuse, row.is_growing, _long(row), steps, row.may_pass)
            self._known[request_type] = command
        return command

    def __iter__(self) -> Iterator[type]:
        """Those that were asked for so far."""
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


COMMANDS: Final = CommandTable()
