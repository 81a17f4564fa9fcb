"""`millrace cluster`: a cluster of several nodes, started on this machine, shown, and its partitions moved.

Exit codes: 0 done, or all is well; 1 it is not (partitions without a leader, brokers that are gone, moves
that were refused or take longer than they were given); 2 nobody answers, or a mistake in what was asked. Not
here: the parts (broker/cluster), `start` (cluster_start.py).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from millrace.broker.cli import RunLoop
from millrace.broker.cli.table import counted, table

if TYPE_CHECKING:
    from millrace.broker.cluster.client import Address, ClusterClient
    from millrace.broker.cluster.mover import Choice
    from millrace.broker.cluster.moves import Move
    from millrace.broker.cluster.view import ClusterView, NodeView, Partition
    from millrace.protocol.errors import KafkaError

NOT_WELL, CANNOT_ASK = 1, 2
BOOTSTRAP = "127.0.0.1:9092"
SHOWN_MAX = 10  # partitions in one line
NODE_ID_MAX = (1 << 31) - 1
LEVEL_MAX = (1 << 15) - 1
VOTER_S_MAX = 25  # what a controller gives a voter to catch up, whoever asks for more
DRAIN_LOOKS = 10  # for partitions that a broker is given while it is drained
OF_VOTERS = ("add-voter", "remove-voter")
UNKNOWN = "not known to be done, nor to be refused (look, and ask again)"
ABOUT = """\
A cluster of several nodes over one bucket: start one here, look at one anywhere, move its partitions.

  millrace cluster start --nodes 3 --data-dir ./cluster      three nodes in this terminal; Ctrl-C stops them
  millrace cluster status --bootstrap-server 127.0.0.1:9092  who leads, who is gone, what waits
  millrace cluster move orders:3 --to 2                      one partition, or all of a topic: orders
  millrace cluster drain 3                                   broker 3 leads nothing, and is given nothing
  millrace cluster undrain 3                                 broker 3 is given partitions again
  millrace cluster spread                                    every broker gets its share
  millrace cluster give-up 3 --accept-loss                   what only the log of broker 3 holds is lost
  millrace cluster unregister 3                              broker 3 never comes back: it is forgotten
  millrace cluster add-voter 4 --at host4:9093               a controller that follows votes from now on
  millrace cluster remove-voter 4                            one votes no more
  millrace cluster upgrade kraft.version=1                   a feature level is raised; without one, all shown

A partition that moves is opened by its new leader when the one before has closed it; producers and consumers
go on by themselves.
"""


def run(words: Sequence[str], env: Mapping[str, str], run_loop: RunLoop) -> int:
    given = parse(words)
    if given.command == "start":
        from millrace.broker.cli.cluster_start import start

        return start(given, run_loop)
    from millrace.broker.settings.addresses import split_host_port

    try:
        bootstrap = [split_host_port(one) for one in given.bootstrap_server.split(",") if one.strip()]
        if not bootstrap:
            raise ValueError("it is empty")
    except ValueError as error:
        print(f"millrace: --bootstrap-server: {error}", file=sys.stderr)
        return CANNOT_ASK
    return run_loop(ask(given, bootstrap))


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "millrace cluster",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, about: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=about, description=about, allow_abbrev=False)

    starting = add("start", "start nodes on this machine; Ctrl-C stops them all")
    _take_start(starting)
    status = add("status", "the quorum, the nodes, and partitions that wait")
    nodes = add("nodes", "the nodes: roles, addresses, what they lead")
    moving = add("move", "give partitions to a broker")
    moving.add_argument("partitions", nargs="+", metavar="TOPIC[:PARTITION]")
    moving.add_argument("--to", type=node_id, required=True, metavar="ID", help="the broker")
    draining = add("drain", "give all that a broker leads to the others, and nothing to it until undrain")
    letting_in = add("undrain", "let a broker be given partitions again; spread gives it its share")
    spreading = add("spread", "give every broker as many partitions as the others")
    losing = add("give-up", "give partitions of a broker that is gone for good to others, without its log")
    losing.add_argument(
        "--accept-loss",
        action="store_true",
        help="acknowledged records that only the write-ahead log of the broker holds are lost",
    )
    forgetting = add("unregister", "forget a broker that is gone for good, and has nothing to be recovered")
    adding = add("add-voter", "let a controller that follows the quorum vote (kraft.version 1)")
    removing = add("remove-voter", "let a voter vote no more (kraft.version 1)")
    raising = add("upgrade", "raise feature levels, from which there is no way back; without one, show them")
    raising.add_argument("features", nargs="*", type=feature_level, metavar="FEATURE=LEVEL")
    for one in (draining, letting_in, losing, forgetting, adding, removing):
        one.add_argument("node_id", type=node_id, metavar="ID")
    for one in (adding, removing):
        one.add_argument("--directory", metavar="DIRECTORY", help="its directory.id, where several are known")
    adding.add_argument("--at", required=True, metavar="HOST:PORT", help="its controller listener")
    adding.add_argument("--listener", metavar="NAME", help="that listener's name; default: the other voters'")
    adding.add_argument(
        "--timeout", type=voter_seconds, default=25, metavar="SECONDS", help="to catch up; default, most 25"
    )
    for one in (status, nodes):
        one.add_argument("--json", action="store_true", help="for programs, in place of the table")
    for one in (moving, draining, spreading):
        one.add_argument("--at-once", type=int, default=10, metavar="N", help="moves at a time; default 10")
        one.add_argument(
            "--timeout", type=seconds, default=60.0, metavar="SECONDS", help="for so many moves; default 60"
        )
        one.add_argument("--dry-run", action="store_true", help="print the moves, and do nothing")
    asking = (name for name in commands.choices if name != "start")
    for one in map(commands.choices.__getitem__, asking):
        one.add_argument(
            "--bootstrap-server", default=BOOTSTRAP, metavar="HOST:PORT[,...]", help=f"default {BOOTSTRAP}"
        )
    given = parser.parse_args(words)
    if getattr(given, "at_once", 1) < 1:
        parser.error("--at-once has to be 1 or more")
    return given


def _take_start(starting: argparse.ArgumentParser) -> None:
    starting.add_argument("--nodes", type=int, default=3, metavar="N", help="default 3")
    starting.add_argument(
        "--data-dir", default="./millrace-cluster", metavar="DIR", help="default ./millrace-cluster"
    )
    starting.add_argument("--port", type=int, metavar="PORT", help="the first node's; default 9092")
    starting.add_argument(
        "--override", action="append", default=[], metavar="KEY=VALUE", help="a setting of every node"
    )
    starting.add_argument(
        "--wal-fencing",
        choices=("claim", "lock"),
        help="of the write-ahead logs in DIR: claim, the default where DIR takes direct I/O, lets others "
        "recover that of a process that stands still; lock waits for it",
    )


def node_id(word: str) -> int:
    """Raises ArgumentTypeError, with a sentence."""
    number = int(word) if word.isascii() and word.isdecimal() and len(word) <= len(str(NODE_ID_MAX)) else -1
    if not 0 <= number <= NODE_ID_MAX:
        raise argparse.ArgumentTypeError(f"{word!r} is no node's id, 0 to {NODE_ID_MAX}")
    return number


def feature_level(word: str) -> tuple[str, int]:
    """Raises ArgumentTypeError, with a sentence."""
    name, equals, level = word.partition("=")
    if not (name and equals and level.isascii() and level.isdecimal() and int(level) <= LEVEL_MAX):
        raise argparse.ArgumentTypeError(f"{word!r} is not FEATURE=LEVEL, as kraft.version=1")
    return name, int(level)


def seconds(word: str) -> float:
    """Raises ArgumentTypeError, with a sentence."""
    try:
        number = float(word)
    except ValueError:
        number = -1.0
    if not (math.isfinite(number) and number > 0):
        raise argparse.ArgumentTypeError(f"{word!r} is not a number of seconds above 0")
    return number


def voter_seconds(word: str) -> float:
    """Raises ArgumentTypeError, with a sentence."""
    number = seconds(word)
    if number > VOTER_S_MAX:
        raise argparse.ArgumentTypeError(f"{word!r} is more than {VOTER_S_MAX} seconds")
    return number


async def ask(given: argparse.Namespace, bootstrap: Sequence[Address]) -> int:
    from millrace.broker.cluster.client import AnswerLost, ClusterClient
    from millrace.broker.cluster.view import look
    from millrace.protocol.errors import KafkaError, WireError
    from millrace.runtime.errors import Unavailable, in_words
    from millrace.runtime.net import LoopNet

    async with ClusterClient(LoopNet(), bootstrap) as client:
        try:
            if given.command in OF_VOTERS:
                from millrace.broker.cli.cluster_voters import change_voters

                return await change_voters(client, given)
            if given.command == "upgrade":
                from millrace.broker.cli.cluster_features import upgrade

                return await upgrade(client, given.features)
            view = await look(client)
            view = await asked_of(client, view)
            if given.command in ("status", "nodes"):
                return tell(view, given)
            if given.command == "give-up":
                return await lose(client, view, given)
            if given.command == "unregister":
                return await forget(client, view, given.node_id)
            if given.command == "undrain":
                return await let_in(client, view, given.node_id)
            if given.command == "drain":
                view, code = await drain(client, view, given)
            elif given.command == "spread":
                code = await spread(client, view, given)
            else:
                code = await move(client, view, given)
            if given.command in ("drain", "spread"):
                code = max(code, tell_silent(view), tell_waiting(view))
            return code
        except ValueError as error:
            print(f"millrace: {error}", file=sys.stderr)
            return CANNOT_ASK
        except AnswerLost as error:
            print(f"millrace: {UNKNOWN}: {in_words(error)}", file=sys.stderr)
            return NOT_WELL
        except Unavailable as error:
            print(f"millrace: {in_words(error)}", file=sys.stderr)
            return CANNOT_ASK
        except WireError as error:
            print(
                f"millrace: {in_words(error)}: give the address that a broker has for clients, not a "
                "controller's (--bootstrap-server)",
                file=sys.stderr,
            )
            return CANNOT_ASK
        except KafkaError as error:
            print(f"millrace: {outcome_of(error, given.command)}", file=sys.stderr)
            return NOT_WELL


def outcome_of(error: KafkaError, command: str) -> str:
    """A change of voters that takes too long is given up before its record is written, or says so; any other
    may have been decided, its answer lost with the controller."""
    from millrace.broker.requests.forwarding import TIMED_OUT
    from millrace.kraft.commands.voters import IS_UNKNOWN
    from millrace.protocol.error_codes import ErrorCode

    if error.code == ErrorCode.REQUEST_TIMED_OUT:
        is_given_up = not any(one in error.message for one in (IS_UNKNOWN, TIMED_OUT))
        if command not in OF_VOTERS or not is_given_up:
            return f"{UNKNOWN}: {error}"
    return f"refused: {error}"


def tell(view: ClusterView, given: argparse.Namespace) -> int:
    gone = [node.node_id for node in view.nodes if node.is_fenced]
    leaderless = view.leaderless
    if given.json:
        print(json.dumps(as_values(view), indent=1))
    else:
        print(*(status_lines(view) if given.command == "status" else node_lines(view.nodes)), sep="\n")
    is_well = view.controller_id >= 0 and not gone and not leaderless
    return 0 if given.command == "nodes" or is_well else NOT_WELL


async def asked_of(client: ClusterClient, view: ClusterView) -> ClusterView:
    """With what each broker that serves says of itself."""
    from millrace.broker.cluster.draining import drained_of

    drained, silent = await drained_of(client, view.serving)
    return view.with_drained(drained, silent)


def tell_silent(view: ClusterView) -> int:
    """Nobody but the broker says whether it is drained."""
    for node_id in view.silent:
        print(
            f"millrace: broker {node_id} gives no answer, so that it is not known whether it is drained: it "
            "is given nothing, and keeps what it leads; ask again once it answers, or is gone",
            file=sys.stderr,
        )
    return NOT_WELL if view.silent else 0


def tell_waiting(view: ClusterView) -> int:
    """Partitions without a leader are nobody's to give: they wait for what their last broker's log holds."""
    waiting = view.leaderless
    if not waiting:
        return 0
    print(
        f"millrace: {counted(len(waiting), 'partition')} without a leader stay as they are, until the "
        f"write-ahead log of the broker that led them is recovered: {names_of(waiting)}; where that log is "
        "lost, see millrace cluster give-up --help",
        file=sys.stderr,
    )
    return NOT_WELL


def broker_of(view: ClusterView, node_id: int) -> NodeView:
    """Raises ValueError with a sentence where it is none of the cluster's."""
    broker = next((node for node in view.nodes if node.is_broker and node.node_id == node_id), None)
    if broker is None:
        raise ValueError(f"the cluster has no broker {node_id}")
    return broker


async def drain(
    client: ClusterClient, view: ClusterView, given: argparse.Namespace
) -> tuple[ClusterView, int]:
    """What there is then, and the exit code. It looks again until the broker leads nothing: somebody may name
    it, or have begun to give it some before, or drain those that were to take some. Raises ValueError with a
    sentence, KafkaError, Unavailable."""
    from millrace.broker.cluster.view import look
    from millrace.runtime.errors import Unavailable

    view, is_left = await shut_out(client, view, given)
    for _ in range(DRAIN_LOOKS):
        code = await move(client, view, given, but_to_drained(client, view, lambda node_id: None))
        if code or given.dry_run or is_left:
            return view, max(code, NOT_WELL if is_left else 0)
        try:  # by itself: it has sealed what others serve, so that it knows of all these moves
            view = await look(client, given.node_id)
        except Unavailable:
            view = await look(client)
        view = await asked_of(client, view)
        if broker_of(view, given.node_id).led == 0:
            return view, 0
    print(
        f"millrace: broker {given.node_id} is given partitions all the same, so that it leads "
        f"{broker_of(view, given.node_id).led}: another move names it; drain it again once that has ended",
        file=sys.stderr,
    )
    return view, NOT_WELL


async def spread(client: ClusterClient, view: ClusterView, given: argparse.Namespace) -> int:
    """The exit code. A broker that is drained meanwhile is given nothing more. Raises as `move` does."""
    refusing: list[int] = []

    def tell(node_id: int) -> None:
        refusing.append(node_id)
        print(
            f"millrace: broker {node_id} was drained meanwhile, and is given nothing more: spread again",
            file=sys.stderr,
        )

    code = await move(client, view, given, but_to_drained(client, view, tell))
    return max(code, NOT_WELL if refusing else 0)


def but_to_drained(client: ClusterClient, view: ClusterView, tell: Callable[[int], None]) -> Choice:
    """Leaves what would go to a broker that was drained since the view where it is; such a one is told of
    once."""
    from millrace.broker.cluster.draining import drained_of

    refusing: set[int] = set()

    async def choose(group: Sequence[Move]) -> list[Move]:
        drained, _ = await drained_of(client, dict.fromkeys(one.to for one in group))
        for node_id in sorted(drained - refusing - set(view.drained)):
            refusing.add(node_id)
            tell(node_id)
        return [one for one in group if one.to not in refusing]

    return choose


async def shut_out(
    client: ClusterClient, view: ClusterView, given: argparse.Namespace
) -> tuple[ClusterView, bool]:
    """What there is once the broker is given nothing more: what it got until then is moved, too. One that is
    gone is asked for nothing, and is left as it is: true then. Raises ValueError with a sentence, KafkaError,
    Unavailable."""
    from millrace.broker.cluster.draining import set_drained
    from millrace.broker.cluster.view import look

    node_id: int = given.node_id
    broker = broker_of(view, node_id)
    if all(one == node_id for one in view.takers):
        raise ValueError(f"no other broker serves that could take what broker {node_id} leads")
    if given.dry_run:
        return view, False
    if broker.is_fenced:
        print(
            f"millrace: broker {node_id} is gone, or starts: drain it again once it serves", file=sys.stderr
        )
        return view, True
    await set_drained(client, node_id, is_drained=True)
    print(
        f"millrace: broker {node_id} is given no partitions any more, also after a restart, until millrace "
        f"cluster undrain {node_id}",
        file=sys.stderr,
    )
    return await asked_of(client, await look(client)), False


async def let_in(client: ClusterClient, view: ClusterView, node_id: int) -> int:
    """Raises ValueError with a sentence, KafkaError, Unavailable."""
    from millrace.broker.cluster.draining import drained_of, set_drained
    from millrace.broker.cluster.view import look, when_serving

    if broker_of(await when_serving(view, node_id, lambda: look(client)), node_id).is_fenced:
        raise ValueError(f"broker {node_id} is gone, or starts: let it in once it serves")
    await set_drained(client, node_id, is_drained=False)
    drained, _ = await drained_of(client, [node_id])
    if node_id in drained:
        raise ValueError(
            f"broker {node_id} is given none still: cordoned.log.dirs stands in its own settings, or is set "
            "for all brokers; take it out there, and where it is the broker's file start the broker again"
        )
    print(f"broker {node_id} may be given partitions again; millrace cluster spread gives it its share")
    return 0


async def lose(client: ClusterClient, view: ClusterView, given: argparse.Namespace) -> int:
    """Raises ValueError with a sentence."""
    from millrace.broker.cluster.giving_up import give_up

    broker = next((node for node in view.nodes if node.is_broker and node.node_id == given.node_id), None)
    if broker is None or not broker.is_fenced:
        serves = "serves" if broker is not None else "is none of this cluster"
        raise ValueError(f"broker {given.node_id} {serves}: nothing of it is given up")
    waiting = view.waiting_for(given.node_id)
    if not waiting:
        print(f"no partition waits for broker {given.node_id}")
        return 0
    count = counted(len(waiting), "partition")
    if not given.accept_loss:
        print(
            f"millrace: {count} of broker {given.node_id} would go on without acknowledged records that "
            f"only its write-ahead log holds: {names_of(waiting)}. Start the broker, or see that another "
            "one can reach its log. Where the log is lost for good, and the broker does not run: "
            "--accept-loss",
            file=sys.stderr,
        )
        return NOT_WELL
    held_too = {one: [gone for gone in view.waits_for[one] if gone != given.node_id] for one in waiting}
    for (topic, index), others in held_too.items():
        if others:
            print(
                f"millrace: {topic}:{index} stays as it is, for what the write-ahead log of broker "
                f"{', '.join(map(str, others))} holds, which is gone too, could be given up with it; "
                "kafka-leader-election.sh --election-type unclean gives it up: first what the broker that "
                "led it holds, and once it is led what others owe",
                file=sys.stderr,
            )
    given_up = await give_up(client, [one for one, others in held_too.items() if not others])
    for one in given_up:
        print(f"{one.partition[0]}:{one.partition[1]}: {one.text}")
    is_done = all(one.is_done for one in given_up) and not any(held_too.values())
    return 0 if is_done else NOT_WELL


async def forget(client: ClusterClient, view: ClusterView, node_id: int) -> int:
    """As kafka-cluster.sh unregister. Raises ValueError with a sentence, KafkaError where the broker runs or
    its write-ahead log is to be recovered first, Unavailable."""
    from millrace.protocol.error_codes import ErrorCode
    from millrace.protocol.errors import KafkaError
    from millrace.protocol.messages.unregister_broker import UnregisterBrokerRequest

    broker_of(view, node_id)
    response = await client.change(UnregisterBrokerRequest(node_id))
    if response.error_code:
        raise KafkaError(ErrorCode(response.error_code), response.error_message or "the controller refuses")
    print(f"broker {node_id} is forgotten: the cluster does not wait for it any more")
    return 0


def names_of(partitions: Sequence[Partition]) -> str:
    shown = ", ".join(f"{topic}:{index}" for topic, index in partitions[:SHOWN_MAX])
    return shown + (", ..." if len(partitions) > SHOWN_MAX else "")


def as_values(view: ClusterView) -> dict[str, Any]:
    nodes = [
        {
            "node_id": node.node_id,
            "roles": node.roles,
            "address": node.address,
            "rack": node.rack,
            "is_fenced": node.is_fenced,
            "is_drained": None if node.is_silent else node.is_drained,
            "partitions_led": node.led,
            "metadata_records_behind": node.behind,
        }
        for node in view.nodes
    ]
    return {
        "cluster_id": view.cluster_id,
        "controller_id": view.controller_id,
        "epoch": view.epoch,
        "high_watermark": view.high_watermark,
        "nodes": nodes,
        "partitions": len(view.leaders),
        "without_leader": [f"{topic}:{index}" for topic, index in view.leaderless],
        "waits_for": {f"{topic}:{index}": gone for (topic, index), gone in sorted(view.waits_for.items())},
    }


def status_lines(view: ClusterView) -> list[str]:
    voters = sum(node.is_voter for node in view.nodes)
    quorum = "quorum: nobody leads; a majority of the controllers has to run and reach one another"
    if view.controller_id >= 0:
        quorum = (
            f"quorum: node {view.controller_id} leads in epoch {view.epoch}, {counted(voters, 'voter')}, "
            f"metadata committed up to {view.high_watermark}"
        )
    sizes = f"{counted(len(view.nodes), 'node')}, {counted(len(view.leaders), 'partition')}"
    lines = [f"cluster {view.cluster_id}: {sizes}", quorum, "", *node_lines(view.nodes)]
    for what, partitions in (("a leader", view.leaderless), ("some of their records", view.lacking)):
        if not partitions:
            continue
        count = counted(len(partitions), "partition")
        lines += ["", f"without {what}: {count}: {names_of(partitions)}"]
        gone = [view.waits_for.get(one, ()) for one in partitions]
        for node_id in sorted({node_id for one in gone for node_id in one}):
            waiting_count = sum(node_id in one for one in gone)
            lines.append(f"  {waiting_count} of them wait for broker {node_id}, or for its write-ahead log")
    return lines


def node_lines(nodes: Sequence[NodeView]) -> list[str]:
    head = ("node", "roles", "clients at", "rack", "state", "leads", "metadata")
    rows = [
        (
            str(node.node_id),
            node.roles,
            node.address or "-",
            node.rack or "-",
            _state(node),
            str(node.led) if node.is_broker else "-",
            "unknown" if node.behind < 0 else f"{node.behind} behind",
        )
        for node in nodes
    ]
    return table(head, rows)


def _state(node: NodeView) -> str:
    if not node.is_broker:
        return "votes"
    if node.is_fenced:
        return "gone, or starts"
    if node.is_silent:
        return "serves, gives no answer"
    return "serves, drained" if node.is_drained else "serves"


def moves_of(view: ClusterView, given: argparse.Namespace) -> list[Move]:
    """Raises ValueError with a sentence."""
    from millrace.broker.cluster.moves import Move, drain_moves, spread_moves

    if given.command == "spread":
        return spread_moves(view.leaders, view.answering, view.drained)
    if given.command == "drain":
        return drain_moves(view.leaders, view.takers, given.node_id)
    if given.to not in view.serving:
        raise ValueError(f"no broker {given.to} serves: there are {', '.join(map(str, view.serving))}")
    found = []
    for text in given.partitions:
        topic, colon, index = text.partition(":")
        if colon:
            chosen = [(topic, int(index))] if index.isascii() and index.isdecimal() else []
            chosen = [one for one in chosen if one in view.leaders]
        else:
            chosen = sorted(one for one in view.leaders if one[0] == topic)
        if not chosen:
            raise ValueError(f"the cluster has no {text}: say TOPIC or TOPIC:PARTITION")
        found += [Move(*one, given.to) for one in chosen if view.leaders[one] != given.to]
    return list(dict.fromkeys(found))


async def move(
    client: ClusterClient, view: ClusterView, given: argparse.Namespace, choose: Choice | None = None
) -> int:
    """The exit code. Raises ValueError with a sentence, KafkaError, Unavailable."""
    from millrace.broker.cluster.mover import NotServed, move_all

    moves = moves_of(view, given)
    if given.dry_run:
        print(*(f"{one.topic}:{one.index} to {one.to}" for one in moves), sep="\n")
        return 0

    def on_served(count: int) -> None:
        print(f"{count} of {counted(len(moves), 'partition')} moved", file=sys.stderr, flush=True)

    try:
        passed = await move_all(client, moves, given.at_once, given.timeout, on_served, choose, view.epochs)
    except NotServed as error:
        shown = ", ".join(f"{one.topic}:{one.index}" for one in error.moves[:SHOWN_MAX])
        print(
            f"millrace: moved, and not served after {given.timeout:g} s where they went: {shown}; "
            "millrace cluster status tells more",
            file=sys.stderr,
        )
        return NOT_WELL
    if not moves:
        print("nothing has to move")
    if passed:
        print(
            f"millrace: went on to another broker, since theirs is gone or somebody moved them: "
            f"{names_of([(one.topic, one.index) for one in passed])}",
            file=sys.stderr,
        )
    return NOT_WELL if passed and given.command != "drain" else 0
