"""Cooperative scheduling on one event loop: who waits for whom, where nobody is interrupted.

    yielding.py      long decisions as generators that stop every few milliseconds; pure
    yield_queue.py   YieldQueue: what is large runs piece by piece, in one queue, others between
    chunks.py        many items a chunk at a time, a yield before each other one
    keyed_queue.py   KeyedQueue: work at keys, first come, first served at each; pure
    semaphore.py     Semaphore: permits by count and bytes, shared fairly between owners

Whoever composes a node makes its YieldQueue (runtime/bundle.py) and hands it in. Nothing here is kept by
loop, by task or by module.
"""
