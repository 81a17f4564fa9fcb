"""The settings of the quorum and of a broker beside it, one row each. Pure: rows only, for table.py."""

from __future__ import annotations

from typing import Final

from millrace.broker.settings.key import BOOLEAN, DOUBLE, INT, LIST, LONG, Key

QUORUM: Final = (
    Key(
        "controller.listener.names",
        LIST,
        None,
        "Listeners of the controller; clients are not served there. One that others reach has CONTROLLER, at "
        "its place in controller.quorum.voters, unless it is told others.",
    ),
    Key(
        "controller.quorum.voters",
        LIST,
        "",
        "The voters, ID@HOST:PORT, the same list on each node. From kraft.version 1 on the metadata log "
        "names them, and a controller does not ask the list any more.",
    ),
    Key(
        "controller.quorum.voters.change.accept",
        BOOLEAN,
        "false",
        "For one start of a node that was one of several voters, and whose quorum is to have others: says "
        "that no node goes on with the former list. Nothing at kraft.version 1, where voters are added and "
        "removed.",
        is_ours=True,
    ),
    Key(
        "controller.quorum.election.timeout.ms",
        INT,
        "1000",
        "Without a leader for this long, and up to twice that by chance, a voter stands for election.",
        low=100,
    ),
    Key(
        "controller.quorum.fetch.timeout.ms",
        INT,
        "2000",
        "A leader that is not heard for this long is given up; one that a majority does not fetch from for "
        "half as long again resigns.",
        low=100,
    ),
    Key(
        "controller.quorum.election.backoff.max.ms",
        INT,
        "1000",
        "A voter that lost an election waits up to this long.",
        low=0,
    ),
    Key(
        "controller.quorum.request.timeout.ms",
        INT,
        "2000",
        "How long a member of the quorum is given to answer; longer than it keeps a fetch, half a second.",
        low=1000,
    ),
    Key(
        "broker.heartbeat.interval.ms",
        INT,
        "1000",
        "How often a broker beside controllers says that it is there.",
        low=10,
    ),
    Key(
        "broker.session.timeout.ms",
        INT,
        "3000",
        "A broker beside controllers that says nothing for this long is fenced: clients are not sent to it.",
        low=100,
    ),
    Key(
        "controller.quorum.bootstrap.servers",
        LIST,
        "",
        "Whom to ask where the quorum is: of a broker without controller.quorum.voters, and of a controller "
        "whose directory was formatted (`millrace format`). Of any other, this node itself.",
        shape="host:port",
    ),
    Key(
        "autobalancer.controller.enable",
        BOOLEAN,
        "true",
        "The active controller gives partitions of brokers that move more bytes than the others to these.",
        is_ours=True,
    ),
    Key(
        "autobalancer.controller.anomaly.detect.interval.ms",
        LONG,
        "60000",
        "How often the active controller looks whether a broker is busy.",
        low=1000,
        is_ours=True,
    ),
    Key(
        "autobalancer.reporter.metrics.reporting.interval.ms",
        LONG,
        "10000",
        "How often a broker beside others reports what its partitions move; a report counts for a minute.",
        low=100,
        high=60_000,
        is_ours=True,
    ),
    Key(
        "autobalancer.controller.network.in.usage.distribution.detect.threshold",
        LONG,
        "1048576",
        "Bytes a second that a broker takes at least to be busy.",
        low=0,
        is_ours=True,
    ),
    Key(
        "autobalancer.controller.network.in.distribution.detect.avg.deviation",
        DOUBLE,
        "0.2",
        "A broker is busy that takes more than the average of all, and this share of it.",
        low=0,
        is_ours=True,
    ),
    Key(
        "autobalancer.controller.network.out.usage.distribution.detect.threshold",
        LONG,
        "1048576",
        "Bytes a second that a broker gives at least to be busy.",
        low=0,
        is_ours=True,
    ),
    Key(
        "autobalancer.controller.network.out.distribution.detect.avg.deviation",
        DOUBLE,
        "0.2",
        "A broker is busy that gives more than the average of all, and this share of it.",
        low=0,
        is_ours=True,
    ),
    Key(
        "autobalancer.controller.execution.concurrency",
        INT,
        "10",
        "Partitions that the balancer moves at most with one look.",
        low=1,
        is_ours=True,
    ),
    Key(
        "autobalancer.controller.exclude.topics",
        LIST,
        "",
        "Topics whose partitions the balancer leaves where they are.",
        is_ours=True,
    ),
    Key(
        "autobalancer.controller.exclude.broker.ids",
        LIST,
        "",
        "Brokers that the balancer gives nothing and relieves of nothing.",
        is_ours=True,
    ),
)
