"""CommandService: commands of other nodes, decided by the controller of this one.

    ForwardCommand (private, key 524), version 0: the request that it holds is a command of
    kraft/commands/table.py, in any version that is known here, or AwaitBackup, which waits, or ReportLoad,
    which decides nothing. What changes voters is decided by voter_changes.py.
    Ignored: the principal, until somebody is authenticated.

The answer carries the metadata offset behind which the reply holds: who asked waits until its own image has
reached that, and sees what it did. Its error code says what became of the command:

    NOT_CONTROLLER                                       nothing: ask who leads now
    UNSUPPORTED_VERSION, INVALID_REQUEST                 nothing, and never will
    KAFKA_STORAGE_ERROR, THROTTLING_QUOTA_EXCEEDED       nothing: there is no room, or too much waits
    REQUEST_TIMED_OUT                                    unknown

Not here: what a command does (kraft/commands), who sends it (channel.py).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from millrace.kraft.bucket.writer import MetadataBackup
from millrace.kraft.commands.spreading import PARTITIONS_MAX
from millrace.kraft.commands.table import COMMAND_KEYS
from millrace.kraft.controller import Controller
from millrace.kraft.errors import LogFull, NotLeader, TooManyCommands
from millrace.kraft.image.publisher import MetadataPublisher
from millrace.kraft.peers.voter_changes import is_of_voters
from millrace.kraft.raft.messages import NOBODY
from millrace.protocol.apis import API, NAMED
from millrace.protocol.codec import decode_request_yielding, encode_response_yielding
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import WireError
from millrace.protocol.header import decode_request_header
from millrace.protocol.messages.await_backup import AwaitBackupRequest, AwaitBackupResponse
from millrace.protocol.messages.forward_command import ForwardCommandRequest, ForwardCommandResponse
from millrace.protocol.messages.report_load import ReportLoadRequest, ReportLoadResponse
from millrace.runtime.errors import Closed, MillraceError, in_words
from millrace.runtime.scheduling.yield_queue import run_yielding

log = logging.getLogger(__name__)
# Of this service alone.
UNDECIDED: Final = frozenset({NAMED["AwaitBackup"].key, NAMED["ReportLoad"].key})


class CommandService:
    """`backup` gives the metadata's way into the bucket, while this node leads and has one; `on_load` is told
    what brokers report."""

    def __init__(
        self,
        controller: Controller,
        publisher: MetadataPublisher,
        change_voters: Callable[[Any], Awaitable[Any]],
    ) -> None:
        self._controller = controller
        self._publisher = publisher
        self._change_voters = change_voters
        self.backup: Callable[[], MetadataBackup | None] = lambda: None
        self.on_load: Callable[[ReportLoadRequest], None] = lambda report: None

    async def answer(self, request: ForwardCommandRequest) -> ForwardCommandResponse:
        """Cancelled, it gives up the wait, not the command. Raises nothing."""
        try:
            header, position = decode_request_header(request.command)
            api, version = API[header.api_key], header.api_version
            if api.key not in COMMAND_KEYS and api.key not in UNDECIDED:
                return ForwardCommandResponse(error_code=ErrorCode.INVALID_REQUEST)
            if not api.min_version <= version <= api.max_version:
                return ForwardCommandResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
            steps = decode_request_yielding(api, version, request.command, position)
            command = await run_yielding(steps)
            if isinstance(command, ReportLoadRequest):
                check_width(command)
        except WireError as error:
            log.warning("a forwarded command cannot be read: %s", in_words(error))
            return ForwardCommandResponse(error_code=ErrorCode.INVALID_REQUEST)
        try:
            reply = await self.decide(command)
        except MillraceError as error:
            return ForwardCommandResponse(error_code=_code_of(error))
        offset = self._publisher.image.offset
        encoded = encode_response_yielding(api, version, header.correlation_id, reply)
        frame = b"".join(await run_yielding(encoded))
        return ForwardCommandResponse(reply=frame[4:], metadata_offset=offset)

    async def decide(self, command: Any) -> Any:
        """The reply to a command, or to AwaitBackup or ReportLoad, from this node's own controller. Raises
        NotLeader (nothing was decided) and what `Controller.submit` does."""
        if isinstance(command, ReportLoadRequest):
            if self.backup() is None:
                raise NotLeader(NOBODY)
            self.on_load(command)
            self._controller.watch.take_load(command)
            return ReportLoadResponse()
        if isinstance(command, AwaitBackupRequest):
            return await self._await_backup(command)
        if is_of_voters(command):
            if not self._controller.is_active:
                raise NotLeader(NOBODY)
            return await self._change_voters(command)
        return await self._controller.submit(command)

    async def _await_backup(self, request: AwaitBackupRequest) -> AwaitBackupResponse:
        """Raises NotLeader where this node does not put metadata into the bucket (any more), or knows less
        than who asks."""
        backup = self.backup()
        if backup is None or self._publisher.image.offset < request.metadata_offset:
            raise NotLeader(NOBODY)
        try:
            await backup.reach_committed()
        except MillraceError as error:
            log.info("a broker waits for another leader's backup: %s", in_words(error))
            raise NotLeader(NOBODY) from None
        return AwaitBackupResponse()


def check_width(report: ReportLoadRequest) -> None:
    """Raises WireError: what is kept of a broker is bounded, whatever it says."""
    count = sum(len(topic.partitions) for topic in report.topics)
    if count > PARTITIONS_MAX + 1:
        raise WireError(
            f"a report of {count} partitions by broker {report.broker_id}: {PARTITIONS_MAX} at most"
        )


def _code_of(error: MillraceError) -> ErrorCode:
    if isinstance(error, NotLeader | Closed):
        return ErrorCode.NOT_CONTROLLER  # told before anything was decided
    if isinstance(error, LogFull):
        return ErrorCode.KAFKA_STORAGE_ERROR
    if isinstance(error, TooManyCommands):
        return ErrorCode.THROTTLING_QUOTA_EXCEEDED
    log.warning("a command was given up: %s", in_words(error))
    return ErrorCode.REQUEST_TIMED_OUT
