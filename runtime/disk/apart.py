"""Threads for calls that may never return: one a call, of its own.

A device that hangs keeps each thread that asks it for anything. The loop has few, which all other disks are
asked by, the one of the metadata log among them, and a process waits for those as it ends. These take no
place from others, and a process ends without them. Where the system gives no thread, nothing of the call is
done, and who asked is told Unavailable: that says nothing of the device, so it is no DiskFailed. Not here:
how many such calls there may be, which whoever asks a device bounds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Final, ParamSpec, TypeVar

from millrace.runtime.errors import Unavailable

P = ParamSpec("P")
T = TypeVar("T")


class ThreadsApart(Executor):
    def submit(self, call: Callable[P, T], /, *args: P.args, **words: P.kwargs) -> Future[T]:
        """Raises Unavailable."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                found = call(*args, **words)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(found)

        start_apart(run, "block-call")
        return future


def start_apart(run: Callable[[], None], name: str) -> None:
    """On a thread that the process does not wait for as it ends. Raises Unavailable."""
    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:
        raise Unavailable(
            "the system gives this process no thread: its user or its container has as many as it may"
        ) from error


THREADS_APART: Final = ThreadsApart()
