"""`millrace format`: an empty log directory made one of a quorum whose voters stand in its log
(kraft.version 1), as `kafka-storage format` does.

Exit codes: 0 formatted; 2 not, and nothing is left of it. Not here: what is written
(kraft/log/formatted_log.py).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from millrace.broker.cli import RunLoop
from millrace.broker.cli.serve import Options, add_data_dir, read_settings, say_mistakes
from millrace.broker.errors import SettingsInvalid

if TYPE_CHECKING:
    from millrace.broker.config import BrokerSettings
    from millrace.kraft.raft.voters import Voter

CANNOT: Final = 2
ABOUT = """\
Formats the log directory of a controller, or of a broker that is one too, for a quorum whose voters come and
go while it runs (kraft.version 1). Say the node's settings as for serve; the directory must be empty.

  millrace format --standalone ...               the first node: a quorum of its own; others are added to it
  millrace format --no-initial-controllers ...   a node that joins: it follows the quorum that
                                                 controller.quorum.bootstrap.servers find, until
                                                 millrace cluster add-voter
  millrace format --initial-controllers 1@a:9093:DIRECTORY,2@b:9093:DIRECTORY,...
                                                 several first nodes, each formatted with the same list (a
                                                 DIRECTORY is 22 characters of base64, all different) and the
                                                 same cluster.id

A node that goes on with a list of voters (controller.quorum.voters) needs none of it, and neither do brokers
that are no controllers.

Exit codes: 0 formatted, 2 not.
"""


def run(words: Sequence[str], env: Mapping[str, str], run_loop: RunLoop) -> int:
    given = parse(words)
    try:
        options = Options(given.config, tuple(given.override), given.data_dir, is_formatted=True)
        settings = read_settings(options, env).settings
        first = voters_of(given.initial_controllers, settings) if given.initial_controllers else ()
    except SettingsInvalid as error:
        say_mistakes(error)
        return CANNOT
    except ValueError as error:
        print(f"millrace: --initial-controllers: {error}", file=sys.stderr)
        return CANNOT
    if not settings.is_controller:
        print("millrace: a broker that is no controller (process.roles) is not formatted", file=sys.stderr)
        return CANNOT
    return run_loop(write(settings, first, is_standalone=given.standalone))


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "millrace format",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", help="the node's settings, as for serve")
    parser.add_argument("--override", metavar="KEY=VALUE", action="append", default=[], help="one setting")
    add_data_dir(parser)
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--standalone", action="store_true", help="a quorum of this node")
    way.add_argument("--no-initial-controllers", action="store_true", help="a node that joins others")
    way.add_argument(
        "--initial-controllers", metavar="ID@HOST:PORT:DIRECTORY,...", help="several first nodes"
    )
    return parser.parse_args(words)


def voters_of(text: str, settings: BrokerSettings) -> tuple[Voter, ...]:
    """Raises ValueError with a sentence."""
    from millrace.broker.settings.addresses import split_host_port
    from millrace.kraft.raft.voters import KRAFT_VERSIONS, NO_DIRECTORY, Endpoint, Voter, in_order
    from millrace.protocol.ids import uuid_bytes

    found = []
    listener = settings.controller.endpoints[0][0]
    for one in filter(None, text.split(",")):
        node_id, at, rest = one.strip().partition("@")
        address, colon, directory = rest.rpartition(":")
        if not (at and colon and node_id.isascii() and node_id.isdecimal()):
            raise ValueError(f"{one!r} is not ID@HOST:PORT:DIRECTORY")
        try:
            directory_id = uuid_bytes(directory)
        except ValueError:
            raise ValueError(f"{one!r} ends with no directory id, 22 characters of base64") from None
        if directory_id == NO_DIRECTORY:
            raise ValueError(f"{one!r} names no directory")
        endpoint = Endpoint(listener, *split_host_port(address))
        found.append(Voter(int(node_id), directory_id, (endpoint,), KRAFT_VERSIONS))
    ids = [voter.node_id for voter in found]
    if len({*ids}) < len(ids):
        raise ValueError("it names a node twice")
    if settings.node_id not in ids:
        raise ValueError(f"it does not name this node, {settings.node_id}: say --no-initial-controllers")
    return in_order(found)


async def write(settings: BrokerSettings, first: Sequence[Voter], *, is_standalone: bool) -> int:
    from millrace.broker.cli.refusals import sentence_of
    from millrace.kraft.log.formatted_log import UNFINISHED, is_formatted, write_formatted_log
    from millrace.kraft.log.meta_properties import MetaProperties
    from millrace.kraft.node import lock_folder, remove_made
    from millrace.kraft.raft.voters import DYNAMIC, KRAFT_VERSIONS, Endpoint, Voter, VoterSet
    from millrace.protocol.ids import uuid_text
    from millrace.runtime.bundle import real_runtime
    from millrace.runtime.errors import MillraceError, in_words

    runtime, own = real_runtime(), settings.controller
    rand, disk, log_dir = runtime.rand.split("format"), runtime.disk, own.log_dir
    directory_id = next((one.directory_id for one in first if one.node_id == own.node_id), rand.uuid())
    if is_standalone:
        endpoints = tuple(Endpoint(*endpoint) for endpoint in own.endpoints)
        first = (Voter(own.node_id, directory_id, endpoints, KRAFT_VERSIONS),)
    cluster_id = own.cluster_id or uuid_text(rand.uuid())
    meta = MetaProperties(cluster_id, own.node_id, uuid_text(directory_id))
    voters = VoterSet(tuple(first), DYNAMIC) if first else None
    try:
        lock, before = await lock_folder(disk, log_dir)
        try:
            if await is_formatted(disk, log_dir):
                print(f"millrace: {log_dir} is a log directory already", file=sys.stderr)
                return CANNOT
            try:
                await write_formatted_log(disk, log_dir, meta, voters, runtime.clock.wall_ms())
            except MillraceError:
                if UNFINISHED not in before:
                    await remove_made(disk, log_dir, before)
                raise
        finally:
            lock.release()
    except (MillraceError, OSError) as error:
        print(f"millrace: not formatted: {sentence_of(error, settings) or in_words(error)}", file=sys.stderr)
        return CANNOT
    print(f"formatted {log_dir}: node {own.node_id}, cluster {cluster_id}, directory {meta.directory_id}")
    return 0
