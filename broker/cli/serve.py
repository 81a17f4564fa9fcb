"""`millrace serve`: settings, then the broker, then a signal, then its orderly end.

Exit codes: 0 after an orderly end, 1 when the broker could not start or had to end, 2 for mistakes in the
settings (all of them are printed, with the warnings), 128 + the signal's number when a second signal ends it
at once. Not here: what is built and in which order (app.py).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from millrace.broker.cli import RunLoop
from millrace.broker.cli.log_lines import LineFormatter
from millrace.broker.config import MEMBERS_PART, BrokerSettings, Loaded, load
from millrace.broker.errors import SettingsInvalid
from millrace.broker.network.server import ServerSettings
from millrace.broker.settings.addresses import Endpoint, join_host_port
from millrace.broker.settings.log_levels import apply_levels
from millrace.broker.settings.source import gather, is_text
from millrace.broker.version import VERSION
from millrace.kraft.log.voters_in_log import has_voters_in_log
from millrace.protocol.dataclass import dataclass
from millrace.runtime import process
from millrace.runtime.escapes import CallbackFailed, guard_loop
from millrace.runtime.started_threads import started_threads

if TYPE_CHECKING:
    import argparse

    from millrace.runtime.bundle import Runtime

log = logging.getLogger(__name__)
DEFAULT_DATA_DIR = "./millrace-data"
# twice the connections to a store, threads over a directory of objects, logs, the admin listener's
OWN_FILES = 300
STOP_BROKEN_S = 60.0
ABOUT = """\
Run a node, broker and controller or one of the two, until a signal ends it (Ctrl-C or SIGTERM; a second one
ends it at once).

  millrace serve                                            on 127.0.0.1:9092, data under ./millrace-data
  millrace serve --data-dir /var/lib/millrace --override num.partitions=3
  millrace serve --override listeners=PLAINTEXT://0.0.0.0:9092 \\
      --override 's3.data.buckets=0@s3://my-bucket?region=eu-central-1'
  KAFKA_NUM_PARTITIONS=3 millrace serve --config server.properties

Several nodes are a cluster when each is told process.roles, controller.quorum.voters, cluster.id and the same
s3.data.buckets (docs/quorum.md).
`millrace settings` prints every setting; `millrace doctor` tries a bucket before a node lives in it.
The line `millrace ready` on standard output says where clients are served; the log goes to standard error.

Exit codes: 0 after an orderly end, 1 when the node could not start or had to end, 2 for mistakes in the
settings.
"""


class ServedBroker(Protocol):
    """What this command needs of app.py's Broker."""

    @property
    def listeners(self) -> Sequence[Endpoint]:
        """Where clients are served, after `start`."""
        ...

    @property
    def admin_port(self) -> int | None:
        """The admin listener's real port, after `start`; None when it is turned off."""
        ...

    @property
    def failed(self) -> asyncio.Future[None]:
        """Gets an exception when the broker cannot go on. Made by the constructor, on the running loop."""
        ...

    async def start(self) -> None:
        """Returns when clients are accepted. Cancelling it is safe: `stop` follows."""
        ...

    async def stop(self) -> None:
        """Orderly, bounded in time, also after a `start` that failed half-way."""
        ...


@dataclass(frozen=True, slots=True)
class Options:
    config: str | None
    overrides: tuple[str, ...]
    data_dir: str
    is_test: bool = False
    is_formatted: bool = False  # read the settings as those of a directory that is
    replaced_pid: int | None = None


def parse_options(words: Sequence[str]) -> Options:
    import argparse

    parser = argparse.ArgumentParser(
        "millrace serve",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", help="settings, in server.properties syntax")
    parser.add_argument(
        "--override", metavar="KEY=VALUE", action="append", default=[], help="one setting; wins over all"
    )
    add_data_dir(parser)
    parser.add_argument(
        "--test-mode", action="store_true", help="for tests: nothing is kept (docs/testing.md)"
    )
    parser.add_argument(
        "--replace",
        metavar="PID",
        type=int,
        help="go on in the place of the process that serves this --data-dir: it is told to end once this one "
        "is loaded, so that clients wait for less of a restart",
    )
    found = parser.parse_args(words)
    options = found.config, tuple(found.override), found.data_dir, found.test_mode
    return Options(*options, replaced_pid=found.replace)


def add_data_dir(parser: argparse.ArgumentParser) -> None:
    """--data-dir, for each command that takes one; parsed, it is absolute."""
    about = f"default {DEFAULT_DATA_DIR}"
    parser.add_argument("--data-dir", metavar="DIR", type=_absolute, default=DEFAULT_DATA_DIR, help=about)


def _absolute(text: str) -> str:
    import argparse

    if not text:
        raise argparse.ArgumentTypeError(
            "it is empty: say a folder (an empty one would be the working directory)"
        )
    if not is_text(text):
        raise argparse.ArgumentTypeError(f"{text} is not UTF-8: say a folder whose name is")
    return os.path.abspath(text)


def read_settings(options: Options, env: Mapping[str, str]) -> Loaded:
    """Raises SettingsInvalid."""
    text, unreadable = None, []
    if options.config is not None:
        try:
            text = process.read_text(options.config)
        except OSError as error:
            unreadable = [f"--config {options.config}: {error.strerror or error}"]
    given, mistakes = gather(options.overrides, env, text, options.config or "")
    if options.is_test:
        from millrace.broker.test_mode import with_test_settings

        given = with_test_settings(given, options.data_dir)
    machine_bytes = process.memory_bytes()
    return load(
        given,
        data_dir=options.data_dir,
        machine_bytes=machine_bytes,
        mistakes=[*unreadable, *mistakes],
        is_formatted=lambda folder: options.is_formatted or has_voters_in_log(folder, _text_of),
    )


def _text_of(path: str) -> str | None:
    try:
        return process.read_text(path)
    except OSError:
        return None


def run(words: Sequence[str], env: Mapping[str, str], run_loop: RunLoop) -> int:
    options = parse_options(words)
    try:
        loaded = read_settings(options, env)
    except SettingsInvalid as error:
        say_mistakes(error)
        return 2
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(LineFormatter())
    logging.basicConfig(handlers=[lines])
    apply_levels(loaded.settings.log_level)
    for warning in loaded.warnings:
        log.warning("%s", warning)
    file_limit = process.raise_file_limit()
    settings = within_files(loaded.settings, file_limit)
    log.info(
        "millrace %s, node %d; %d open files, %d of them for connections; memory %s",
        VERSION,
        settings.node_id,
        file_limit,
        settings.server.connections.total_max,
        settings.memory,
    )
    log.info("data directory %s; metadata log %s; WAL %s; data bucket %s", *places_of(options, settings))
    if options.is_test:
        return run_loop(serve_test(settings, options.data_dir))
    return run_loop(serve(settings, options.replaced_pid))


def places_of(options: Options, settings: BrokerSettings) -> tuple[str, str, str, str]:
    """Where this node keeps what it keeps."""
    return options.data_dir, settings.controller.log_dir, str(settings.wal), str(settings.data)


def say_mistakes(error: SettingsInvalid) -> None:
    """All that there is to mend, and what would be ignored, at once."""
    print("millrace: the settings hold mistakes:", *error.mistakes, sep="\n  ", file=sys.stderr)
    if error.warnings:
        print("and beside them:", *error.warnings, sep="\n  ", file=sys.stderr)


def within_files(settings: BrokerSettings, file_limit: int) -> BrokerSettings:
    """Connections leave files to logs, objects, the store and modules that are loaded late: without one of
    those the broker ends. And to connections that were made while others were: all that stand in line are
    accepted before the first of them is refused. Clients leave some to the members of a quorum, too."""
    if file_limit <= 0:  # as some sandboxes say that there is none
        return settings
    kept = min(OWN_FILES + settings.server.backlog, file_limit * 2 // 3)
    files_max = members_max = file_limit - kept
    if settings.serves_both:
        members_max = files_max // MEMBERS_PART
        files_max -= members_max
    return replace(
        settings,
        server=_within(settings.server, files_max),
        member_server=_within(settings.member_server, members_max),
    )


def _within(server: ServerSettings, files_max: int) -> ServerSettings:
    given = server.connections
    connections = replace(given, total_max=min(given.total_max, files_max), files_max=files_max)
    return replace(server, connections=connections)


async def serve(settings: BrokerSettings, replaced_pid: int | None = None) -> int:
    """Builds the broker, or the controller that is none, and runs it to its end. 1 also where the process
    that it is to replace cannot be told to end."""
    kind = kind_of(settings)
    with process.loading():
        from millrace.runtime.bundle import real_runtime
    if replaced_pid is not None:
        from millrace.broker.cli.replacing import NotReplaced, check_fits, end_former

        try:
            await check_fits(settings.controller, real_runtime().disk)
            await end_former(replaced_pid, settings.controller.log_dir)
        except NotReplaced as error:
            print(f"millrace: cannot start: {error}", file=sys.stderr)
            return 1
    return await run_broker(kind(settings, real_runtime()), settings)


def kind_of(settings: BrokerSettings) -> Callable[[BrokerSettings, Runtime], ServedBroker]:
    """What is to be made, by its roles; its code is loaded on return."""
    # Here, so that mistakes in the settings are told before the larger part is loaded.
    kind: Callable[[BrokerSettings, Runtime], ServedBroker]
    with process.loading():
        if settings.is_alone:
            from millrace.broker.quorum.alone import AloneBroker as kind
        elif not settings.is_broker:
            from millrace.broker.quorum.process import ControllerProcess as kind
        elif not settings.is_controller:
            from millrace.broker.quorum.follower import FollowingBroker as kind
        else:
            from millrace.broker.quorum.voting import VotingBroker as kind
    return kind


async def serve_test(settings: BrokerSettings, data_dir: str) -> int:
    """The same in test mode, with a control listener for faults. 2 for a folder of a start without it."""
    with process.loading():
        from millrace.broker.app import Broker
        from millrace.broker.injection import Injection
        from millrace.broker.injection_http import ControlServer
        from millrace.broker.test_mode import NOTICE, take_folder, unsynced_runtime, without_fill

    runtime, injection = unsynced_runtime(), Injection()
    if not await take_folder(runtime.disk, data_dir, settings.controller.log_dir):
        print(
            f"millrace: {data_dir} was not made in test mode, which keeps nothing: say another --data-dir",
            file=sys.stderr,
        )
        return 2
    log.warning(NOTICE)
    control = ControlServer(runtime.net, injection)
    port = await control.start()
    try:
        return await run_broker(
            Broker(without_fill(settings), runtime, injection), settings, f" control http://127.0.0.1:{port}"
        )
    finally:
        await control.stop()


async def run_broker(broker: ServedBroker, settings: BrokerSettings, control: str = "") -> int:
    """`control`: in test mode, where faults are asked for; said behind the ready line."""
    asked_to_stop = _watch_signals()
    asyncio.get_running_loop().set_default_executor(started_threads())

    def on_fatal(error: CallbackFailed) -> None:
        if not broker.failed.done():
            broker.failed.set_exception(error)

    guard_loop(asyncio.get_running_loop(), on_fatal)
    starting = asyncio.ensure_future(broker.start())
    await asyncio.wait([starting, asked_to_stop, broker.failed], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait([starting])
    refusal = None if starting.cancelled() else starting.exception()
    if not starting.cancelled() and refusal is None and not asked_to_stop.done():
        process.keep_start_out_of_collections(is_searched=not control)
        print(ready_line(broker, settings) + control, flush=True)
        await asyncio.wait([asked_to_stop, broker.failed], return_when=asyncio.FIRST_COMPLETED)
    failure = broker.failed.exception() if broker.failed.done() else None
    if failure is not None:  # what it made of the start is no news
        _say_failed("cannot go on", failure, settings)
    elif refusal is not None:
        _say_failed("cannot start", refusal, settings)
    await _stop(broker, STOP_BROKEN_S if isinstance(failure, CallbackFailed) else None)
    if failure is None and broker.failed.done():
        failure = broker.failed.exception()
        assert failure is not None
        _say_failed("did not end in order", failure, settings)
    if failure is None and refusal is None:
        log.info("stopped in order")
    return 0 if failure is None and refusal is None else 1


async def _stop(broker: ServedBroker, patience_s: float | None) -> None:
    """What can be put away in order is. A broker in which a callback broke may wait for ever for what it left
    undone: it ends at once when its time is over."""
    stopping = asyncio.ensure_future(broker.stop())
    await asyncio.wait([stopping], timeout=patience_s)
    if not stopping.done():
        log.critical("the broker did not end in order within %.0f s", patience_s)
        process.exit_now(1)
    stopping.result()


def ready_line(broker: ServedBroker, settings: BrokerSettings) -> str:
    words = ["millrace ready", *map(str, broker.listeners)]
    if settings.listeners.admin is not None and broker.admin_port is not None:
        words.append(f"admin http://{join_host_port(settings.listeners.admin[0], broker.admin_port)}")
    return " ".join(words)


def _watch_signals() -> asyncio.Future[None]:
    """Done at the first SIGTERM or SIGINT; the second ends the process at once."""
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[None] = loop.create_future()

    def on_signal(number: int) -> None:
        if asked.done():
            process.exit_now(128 + number)
        log.info("%s: stopping; a second one ends at once", signal.Signals(number).name)
        asked.set_result(None)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    return asked


def _say_failed(what: str, error: BaseException, settings: BrokerSettings) -> None:
    """One sentence for what the operator can mend, a trace for what only we can."""
    from millrace.broker.cli.refusals import sentence_of  # only who fails loads it

    sentence = sentence_of(error, settings)
    if sentence is None:
        log.critical("%s", what, exc_info=error)
    else:
        print(f"millrace: {what}: {sentence}", file=sys.stderr)
        log.debug("%s", what, exc_info=error)
