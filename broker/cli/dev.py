"""`millrace dev`: a broker in the foreground for trying things out, with topics and records to begin with.
Nothing is kept.

It ends at SIGINT or SIGTERM, with exit code 0; 1 when the broker could not start or ended by itself, with the
end of its log.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from types import FrameType

from millrace.broker.cli import RunLoop
from millrace.broker.cli.testing_options import add_options, fill, settings_of, topics_of
from millrace.testing.broker import Broker
from millrace.testing.errors import BrokerNotStarted, Refused

PORT = 9092
LOG_SHOWN_CHARS = 4_000


class Asked(BaseException):
    """To end."""


def run(words: Sequence[str], env: Mapping[str, str], run_loop: RunLoop) -> int:
    parser = argparse.ArgumentParser(
        "millrace dev", description="Serve in the foreground; nothing is kept.", allow_abbrev=False
    )
    parser.add_argument("--port", type=int, default=PORT, help=f"default {PORT}; 0: a free one")
    add_options(parser)
    found = parser.parse_args(words)
    if not 0 <= found.port < 1 << 16:
        parser.error("--port is none of 0 to 65535")
    try:
        own, topics = Broker(settings_of(found.override), found.port), topics_of(found.topic)
    except ValueError as error:
        parser.error(str(error))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _ask)
    with closing(own) as broker:
        try:
            broker.start()
            count = fill(broker, topics, found.seed)
            made = "".join(f"\n  {name}" for name in broker.topics())
            print(
                f"millrace dev: Kafka at {broker.bootstrap_servers}; {count} records; nothing is kept{made}",
                flush=True,
            )
            code = broker.process.wait()
            print(
                f"millrace: the broker ended with {code}\n{broker.log_text[-LOG_SHOWN_CHARS:]}",
                file=sys.stderr,
            )
        except (BrokerNotStarted, Refused, ValueError, OSError) as error:
            print(f"millrace: {error}", file=sys.stderr)
        except Asked:
            return 0
    return 1


def _ask(number: int, frame: FrameType | None) -> None:
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)  # what is left to do is done in milliseconds
    raise Asked
