"""Threads for blocking calls that are all started at once.

A pool that starts a thread when one is wanted fails the call where the system gives none, though it has
others: the call is made all the same, and whoever asked takes it for failed. Of the metadata log that ends
the node. Not here: calls that may never return (disk/apart.py).
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final

COUNT: Final = min(32, (os.cpu_count() or 1) + 4)  # as many as a loop has by itself


def started_threads(count: int = COUNT) -> ThreadPoolExecutor:
    """Fewer where the system gives no more. Raises RuntimeError where it gives none."""
    threads, all_asked = ThreadPoolExecutor(count, thread_name_prefix="blocking"), threading.Event()
    started = 0
    try:
        while started < count:
            threads.submit(all_asked.wait)  # none is idle meanwhile, so each begins a thread
            started += 1
    except RuntimeError:
        if not started:
            raise
    else:
        return threads
    finally:
        all_asked.set()
    threads.shutdown()
    return started_threads(started)
