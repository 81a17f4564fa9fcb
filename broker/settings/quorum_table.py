"""The settings of the quorum and of a broker beside it, one row each. Pure: rows only, for table.py."""

from __future__ import annotations

from typing import Final

from millrace.broker.settings.key import INT, LIST, Key

QUORUM: Final = (
    Key(
        "controller.listener.names",
        LIST,
        None,
        "Listeners of the controller; clients are not served there. A node that is no broker has CONTROLLER, "
        "at its place in controller.quorum.voters, unless it is told others.",
    ),
    Key(
        "controller.quorum.voters",
        LIST,
        "",
        "The voters, ID@HOST:PORT, the same list on each node; several are controllers alone for now.",
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
        "Where the quorum is found; here, this node itself. Several are named in controller.quorum.voters.",
        shape="host:port",
    ),
)
