"""The quorum's settings: which parts this process runs, who the voters are, how long they wait for one
another. Pure.

As checks.py does, each function reads values and gives a part of the settings; what does not fit becomes a
mistake of the key that is at fault.
"""

from __future__ import annotations

from typing import Final

from millrace.broker.cluster.config import BalancerSettings, Limits
from millrace.broker.settings.addresses import WILDCARDS, parse_endpoints, split_host_port
from millrace.broker.settings.table import CLIENT_LISTENER
from millrace.broker.settings.values import Values
from millrace.kraft.config import QuorumSettings, Ticks

ROLES_KEY, VOTERS_KEY = "process.roles", "controller.quorum.voters"
EXCLUDED_BROKERS_KEY: Final = "autobalancer.controller.exclude.broker.ids"
ACCEPT_KEY: Final = "controller.quorum.voters.change.accept"
BOOTSTRAP_KEY: Final = "controller.quorum.bootstrap.servers"
CONTROLLER_LISTENER, PORT = "CONTROLLER", 9093  # of a controller that names none


def read_roles(values: Values) -> tuple[bool, bool]:
    """Whether the process is a broker, and whether it is a controller."""
    roles = set(values[ROLES_KEY])
    if not roles:
        values.mistake(ROLES_KEY, "must be broker,controller or one of the two")
    return "broker" in roles, "controller" in roles


def read_quorum(
    values: Values, node_id: int, *, is_broker: bool, is_controller: bool, is_formatted: bool = False
) -> QuorumSettings:
    """A quorum of this node, or of the controllers that controller.quorum.voters names, or those that its log
    names: where it is of a controller whose directory `is_formatted` for that (`millrace format`), or was
    raised to kraft.version 1, the list is not asked."""
    voters = _read_voters(values)
    bootstrap = _read_bootstrap(values)
    is_dynamic = is_formatted or (not is_controller and not voters and bool(bootstrap))
    if is_controller and voters and node_id not in voters and not is_formatted:
        values.mistake(VOTERS_KEY, f"does not hold this node, {node_id}")
    if not is_controller and not voters and not is_dynamic:
        values.mistake(
            VOTERS_KEY, f"has to name the controllers, for a broker that is none; or {BOOTSTRAP_KEY} some"
        )
    if not is_controller and node_id in voters:
        values.mistake(VOTERS_KEY, f"holds this node, {node_id}, which is no controller ({ROLES_KEY})")
    if len(bootstrap) > 1 and not is_dynamic and not voters:
        values.mistake(
            BOOTSTRAP_KEY,
            "names several servers, and the log directory is not formatted: `millrace format` makes it one "
            f"of a node that joins them; or say the voters in {VOTERS_KEY}, with their ids",
        )
    is_whole = is_broker and is_controller and len(voters) <= 1 and not is_dynamic
    is_alone = is_whole and not has_place_for_others(values)
    if not is_whole and not values.is_given("s3.data.buckets"):
        values.mistake("s3.data.buckets", "has to be given, the same to each node of a cluster of several")
    if (len(voters) > 1 or not is_controller) and not is_formatted and not values["cluster.id"]:
        values.mistake("cluster.id", "has to be given, the same to each node of a cluster of several")
    session_ms, heartbeat_ms = values["broker.session.timeout.ms"], values["broker.heartbeat.interval.ms"]
    if session_ms < 2 * heartbeat_ms:
        text = f"is below two of broker.heartbeat.interval.ms={heartbeat_ms}"
        values.mistake("broker.session.timeout.ms", text)
    return QuorumSettings(
        voters,
        values["controller.quorum.request.timeout.ms"] / 1000,
        None if is_alone else session_ms,
        heartbeat_ms / 1000,
        is_dynamic,
        bootstrap,
        is_alone,
    )


def has_place_for_others(values: Values) -> bool:
    """Of a whole quorum: whether `listeners`, as it is given, holds one that others join it by
    (controller.listener.names), and others could tell clients where to reach this broker. Not in the start
    in which it is told that the others of a former list are gone: who is alone fences them and marks their
    logs as it registers. What cannot be parsed is a mistake elsewhere."""
    if not values.is_given("listeners"):
        return False
    try:
        every = parse_endpoints(values["listeners"] or ())
        advertised = {one.listener for one in parse_endpoints(values["advertised.listeners"] or ())}
    except ValueError:
        return False
    names = {name.upper() for name in values["controller.listener.names"] or (CONTROLLER_LISTENER,)}
    clients = [one for one in every if one.listener not in names]
    if len(clients) == len(every):
        return False
    values.fill("controller.listener.names", CONTROLLER_LISTENER)
    if values[ACCEPT_KEY]:
        values.warnings.append(f"nobody is served at the controller listener while {ACCEPT_KEY} is set")
        return False
    untold = [one.listener for one in clients if one.host in WILDCARDS and one.listener not in advertised]
    if untold:
        values.warnings.append(
            f"nobody is served at the controller listener of listeners: {untold[0]} listens on every "
            "address, and advertised.listeners does not say where other nodes are to tell clients that it is"
        )
    return not untold


def fill_listeners(values: Values, quorum: QuorumSettings, node_id: int, *, is_broker: bool) -> None:
    """Of a controller that others reach: where the voters say that it is, unless it says so itself."""
    values.fill("controller.listener.names", CONTROLLER_LISTENER)
    host, port = quorum.voters.get(node_id, ("127.0.0.1", PORT))
    host = f"[{host}]" if ":" in host else host
    clients = f"{CLIENT_LISTENER}," if is_broker else ""
    values.fill("listeners", f"{clients}{CONTROLLER_LISTENER}://{host}:{port}")


def read_balancer(values: Values) -> BalancerSettings:
    brokers = values[EXCLUDED_BROKERS_KEY] or ()
    excluded = {int(one) for one in brokers if one.isascii() and one.isdecimal()}
    if len(excluded) < len(set(brokers)):
        values.mistake(EXCLUDED_BROKERS_KEY, "holds something that is no broker's id")
    prefix = "autobalancer.controller."
    ways = f"{prefix}network.in", f"{prefix}network.out"
    thresholds = [float(values[f"{way}.usage.distribution.detect.threshold"]) for way in ways]
    deviations = [values[f"{way}.distribution.detect.avg.deviation"] for way in ways]
    concurrency = values[f"{prefix}execution.concurrency"]
    return BalancerSettings(
        values[f"{prefix}enable"],
        values[f"{prefix}anomaly.detect.interval.ms"] / 1000,
        values["autobalancer.reporter.metrics.reporting.interval.ms"] / 1000,
        Limits((thresholds[0], thresholds[1]), (deviations[0], deviations[1]), concurrency),
        frozenset(values[f"{prefix}exclude.topics"] or ()),
        frozenset(excluded),
    )


def read_ticks(values: Values) -> Ticks:
    return Ticks.of_ms(
        values["controller.quorum.election.timeout.ms"],
        values["controller.quorum.fetch.timeout.ms"],
        values["controller.quorum.election.backoff.max.ms"],
    )


def _read_bootstrap(values: Values) -> tuple[tuple[str, int], ...]:
    found = []
    for address in values[BOOTSTRAP_KEY] or ():
        try:
            found.append(split_host_port(address))
        except ValueError:
            values.mistake(BOOTSTRAP_KEY, f"holds {address!r}, which is not HOST:PORT")
    return tuple(found)


def _read_voters(values: Values) -> dict[int, tuple[str, int]]:
    found: dict[int, tuple[str, int]] = {}
    for voter in values[VOTERS_KEY] or ():
        voter_id, at, address = voter.partition("@")
        try:
            if not at or not voter_id.isdecimal():
                raise ValueError("an id is missing")
            place = split_host_port(address)
        except ValueError:
            values.mistake(VOTERS_KEY, f"holds {voter!r}, which is not ID@HOST:PORT")
            continue
        if int(voter_id) in found:
            values.mistake(VOTERS_KEY, f"holds node {int(voter_id)} twice")
        found[int(voter_id)] = place
    return found
