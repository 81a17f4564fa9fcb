"""What the commands share that look at a node's data: which node (`--config`, `--data-dir`, `--override`, as
for serve), and what cannot be read.

Exit code 2 stands for what kept a command from looking, with one sentence.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from millrace.broker.cli.serve import Options, add_data_dir, read_settings, say_mistakes
from millrace.broker.errors import SettingsInvalid

if TYPE_CHECKING:
    from millrace.broker.config import BrokerSettings
    from millrace.broker.inspection.opening import Inspected
    from millrace.runtime.bundle import Runtime

CANNOT_LOOK = 2


def add_node_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="the node's settings, as for serve")
    parser.add_argument(
        "--override", metavar="KEY=VALUE", action="append", default=[], help="one setting, as for serve"
    )
    add_data_dir(parser)
    parser.add_argument("--json", action="store_true", help="for programs, in place of a table")


def parse_inspection(
    name: str,
    about: str,
    lister: tuple[str, Mapping[str, Mapping[str, Any]]],
    shower: tuple[str, str],
    words: Sequence[str],
) -> argparse.Namespace:
    """For a command that lists things of a node or shows one by its number: what `list` does and its own
    options, what `show` does and where its number goes."""
    parser = argparse.ArgumentParser(
        f"millrace {name}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help=lister[0])
    for option, details in lister[1].items():
        listing.add_argument(option, **details)
    showing = commands.add_parser("show", help=shower[0])
    showing.add_argument(shower[1], type=int, metavar="ID")
    for one in (listing, showing):
        add_node_options(one)
    return parser.parse_args(words)


def settings_of(
    given: argparse.Namespace, env: Mapping[str, str], *, is_formatted: bool = False
) -> BrokerSettings | None:
    """None when they hold mistakes, which are told. `is_formatted`: as of a directory whose log names the
    voters, whatever is there."""
    options = Options(given.config, tuple(given.override), given.data_dir, is_formatted=is_formatted)
    try:
        return read_settings(options, env).settings
    except SettingsInvalid as error:
        say_mistakes(error)
        return None


async def look(
    settings: BrokerSettings, hold: bool, use: Callable[[Runtime, Inspected], Awaitable[int]]
) -> int:
    """Reads the metadata and gives it to `use`. With `hold` no broker can start on the directory
    meanwhile."""
    from millrace.broker.cli.refusals import sentence_of
    from millrace.broker.inspection.opening import inspect_metadata
    from millrace.runtime.bundle import real_runtime
    from millrace.runtime.errors import MillraceError
    from millrace.runtime.objectstore.address import AddressError

    runtime = real_runtime()
    try:
        inspected = await inspect_metadata(runtime.disk, settings, hold=hold)
        try:
            return await use(runtime, inspected)
        finally:
            inspected.release()
    except (MillraceError, OSError, AddressError) as error:
        print(f"millrace: {sentence_of(error, settings) or repr(error)}", file=sys.stderr)
        return CANNOT_LOOK


def say_running(inspected: Inspected, what: str) -> None:
    """On stderr, where a broker holds the directory."""
    if inspected.running_pid:
        print(
            f"millrace: a broker is running on this directory (process {inspected.running_pid}): {what}",
            file=sys.stderr,
        )


def time_text(wall_ms: int) -> str:
    import datetime

    moment = datetime.datetime.fromtimestamp(wall_ms / 1000, datetime.UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S")
