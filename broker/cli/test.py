"""`millrace test -- COMMAND`: runs a command with a broker of its own, and leaves nothing behind.

Its exit code is the command's; 125 when there was no broker to run it with, 126 and 127 as in a shell. What
is written to standard output is the command's alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing

from millrace.broker.cli import RunLoop
from millrace.broker.cli.testing_options import add_options, fill, settings_of, topics_of
from millrace.broker.interrupts import raise_on_interrupt
from millrace.testing.broker import Broker
from millrace.testing.command import run_command
from millrace.testing.errors import BrokerNotStarted, Refused

VARIABLE = "KAFKA_BOOTSTRAP_SERVERS"
CONTROL_VARIABLE = "MILLRACE_CONTROL_URL"
LOG_VARIABLE = "MILLRACE_BROKER_LOG"
NO_BROKER = 125


def run(words: Sequence[str], env: Mapping[str, str], run_loop: RunLoop) -> int:
    parser = argparse.ArgumentParser(
        "millrace test",
        usage="millrace test [OPTIONS] -- COMMAND [ARGUMENT ...]",
        description=f"Run a command with a broker of its own: its address is in {VARIABLE}. Nothing is kept.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--env",
        metavar="NAME",
        action="append",
        default=[],
        help="another variable to put the address in, as SPRING_KAFKA_BOOTSTRAP_SERVERS or KAFKA_BROKERS",
    )
    add_options(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what to run, with its arguments")
    found = parser.parse_args(words)
    command = found.command[1:] if found.command[:1] == ["--"] else found.command
    if not command:
        parser.error("there is no command to run: millrace test -- npm test")
    for name in found.env:
        if not name or "=" in name:
            parser.error(f"--env {name}: is no name of a variable")
    try:
        own, topics = Broker(settings_of(found.override)), topics_of(found.topic)
    except ValueError as error:
        parser.error(str(error))
    raise_on_interrupt()
    with closing(own) as broker:
        try:
            broker.start()
            fill(broker, topics, found.seed)
        except (BrokerNotStarted, Refused, ValueError, OSError) as error:
            print(f"millrace: {error}", file=sys.stderr)
            return NO_BROKER
        address = broker.bootstrap_servers
        print(f"millrace: a broker at {address} for this command; nothing is kept", file=sys.stderr)
        log_path = broker.process.log_path
        known = {CONTROL_VARIABLE: broker.process.control_url, LOG_VARIABLE: log_path}
        broker.process.end_with_owner(f"{LOG_VARIABLE}={log_path}")
        return run_command(command, {**env, **dict.fromkeys((VARIABLE, *found.env), address), **known})
