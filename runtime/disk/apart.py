"""Threads for calls that may never return: one a call, of its own.

A device that hangs keeps each thread that asks it for anything. The loop has few, which all other disks are
asked by, the one of the metadata log among them, and a process waits for those as it ends. These take no
place from others, and a process ends without them. Not here: how many such calls there may be, which whoever
asks a device bounds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class ThreadsApart(Executor):
    def submit(self, call: Callable[P, T], /, *args: P.args, **words: P.kwargs) -> Future[T]:
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

        threading.Thread(target=run, name="block-call", daemon=True).start()
        return future


THREADS_APART: Final = ThreadsApart()
