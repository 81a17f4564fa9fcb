"""`millrace serve --replace PID`: the node goes on in another process, which has its code loaded before the
one that runs is told to end. Clients wait for the end of the one and the beginning of the other alone.

Not here: what either does. Kept true: no process is told to end but one that has this node's metadata log
open.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from pathlib import Path
from typing import Final

from millrace.kraft.config import ControllerSettings
from millrace.kraft.errors import LogCorrupt, LogMismatch
from millrace.kraft.log.meta_properties import read_meta_properties
from millrace.kraft.node import LOCK_FILE
from millrace.kraft.recovery import check_meta
from millrace.runtime import process
from millrace.runtime.disk import Disk
from millrace.runtime.errors import in_words

log = logging.getLogger(__name__)
SAY_EVERY_S: Final = 5.0


class NotReplaced(Exception):
    """The process cannot be told to end; it runs as before, or does not run."""


async def check_fits(settings: ControllerSettings, disk: Disk) -> None:
    """Raises NotReplaced where the metadata log is another node's or cluster's than these settings': they
    would be refused once nobody serves any more."""
    try:
        meta = await read_meta_properties(disk, settings.log_dir)
        if meta is not None:
            check_meta(settings, meta)
    except (LogCorrupt, LogMismatch) as error:
        raise NotReplaced(f"{in_words(error)}; nothing was ended") from error


async def end_former(pid: int, log_dir: str) -> None:
    """Tells the process to end (SIGTERM), and returns when it has, however long its orderly end takes. Raises
    NotReplaced, and has told nobody, where the process is not there, is not ours, or has another log
    directory. Cancelled, the former process ends all the same."""
    try:
        handle = os.pidfd_open(pid)
    except AttributeError:
        raise NotReplaced("--replace is there on Linux alone: end the process, then start this one") from None
    except (OSError, OverflowError) as error:
        raise NotReplaced(f"there is no process {pid} to replace: start without --replace") from error
    try:
        if not _has_open(pid, f"{log_dir}/{LOCK_FILE}"):
            raise NotReplaced(
                f"process {pid} is no node with the metadata log {log_dir}, or is not to be looked at from "
                "here: nothing was ended; say the number of the one that serves this --data-dir"
            )
        log.info("process %d is told to end, and this one goes on in its place", pid)
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            signal.pidfd_send_signal(handle, signal.SIGTERM)
        await _wait(handle, pid)
        log.info("process %d has ended: nobody serves until this one is ready", pid)
    finally:
        os.close(handle)


async def _wait(handle: int, pid: int) -> None:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    try:
        while not await process.has_ended(handle, SAY_EVERY_S):
            log.info(
                "process %d has not ended after %.0f s: it uploads and hands over first; waiting for it",
                pid,
                loop.time() - began_s,
            )
    except asyncio.CancelledError:
        log.warning("process %d was told to end, and this one does not go on in its place", pid)
        raise


def _has_open(pid: int, path: str) -> bool:
    try:
        wanted = os.stat(path)
        found = [os.stat(each) for each in Path(f"/proc/{pid}/fd").iterdir() if each.exists()]
    except OSError:
        return False
    return any((one.st_dev, one.st_ino) == (wanted.st_dev, wanted.st_ino) for one in found)
