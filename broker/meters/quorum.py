"""What /metrics shows of a member of the controller quorum, in the words of DescribeQuorum."""

from __future__ import annotations

from millrace.broker.quorum.duties import LeaderDuties
from millrace.broker.quorum.waiting_count import WaitingCount
from millrace.kraft.commands.failovers import waiting_nodes
from millrace.kraft.node import ControllerNode
from millrace.runtime.metrics import Registry


def show_controller(registry: Registry, node: ControllerNode) -> None:
    """Of a controller that is no broker; a broker shows these of its image (node.py)."""
    news = node.driver.news
    active = "1: this node is the active controller"
    registry.gauge("millrace_metadata_active_controllers", active, lambda: news.is_active)
    registry.gauge(
        "millrace_metadata_applied_offset", "End of the applied metadata log", lambda: news.applied
    )


def show_quorum(registry: Registry, node: ControllerNode, waiting: WaitingCount) -> None:
    news, raft = node.driver.news, node.driver.raft
    registry.gauge("millrace_quorum_leader", "Node that leads the quorum; -1: nobody", lambda: news.leader)
    registry.gauge("millrace_quorum_epoch", "Epoch of the quorum", lambda: news.epoch)
    registry.gauge(
        "millrace_quorum_high_watermark", "End of what is known to be committed", lambda: raft.high_watermark
    )
    registry.gauge("millrace_quorum_log_end_offset", "End of the metadata log here", lambda: raft.log.end)
    registry.gauge(
        "millrace_failover_running_brokers",
        "Brokers that are gone whose write-ahead log another one recovers",
        lambda: len(node.publisher.image.failovers) - len(waiting_nodes(node.publisher.image)),
    )
    registry.gauge(
        "millrace_failover_waiting_brokers",
        "Brokers that are gone whose write-ahead log nobody can recover: their partitions wait",
        lambda: len(waiting_nodes(node.publisher.image)),
    )
    registry.gauge(
        "millrace_failover_waiting_partitions",
        "Partitions that wait for the write-ahead log of a broker that nobody can recover; at the active "
        "controller, 0 elsewhere",
        lambda: waiting.shown,
    )


def show_duties(registry: Registry, duties: LeaderDuties) -> None:
    def age_s() -> float:
        return 0.0 if duties.backup is None else duties.backup.age_s()

    registry.gauge(
        "millrace_quorum_duties", "1: this controller does the cluster's duties", duties.is_at_work
    )
    registry.counter(
        "millrace_balancer_moves_total",
        "Partitions of busy brokers that this controller gave to others",
        lambda: duties.balanced_count,
    )
    registry.gauge(
        "millrace_metadata_backup_age_seconds",
        "Age of the oldest committed metadata that is not in the bucket; 0 where all is, or another puts it",
        age_s,
    )
