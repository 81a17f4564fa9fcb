"""Many plans in processes that fork off one another: what plans have in common is run once.

Plans that differ in their strikes alone are run by one process as far as the first of these; there it forks a
child, which is struck and goes on, while its parent goes on unstruck. A child with plans that strike again,
in its recovery, forks in its turn. A plan so pays for what comes after its last strike, and a run in a child
is the run from scratch to the last byte on the wire: `python -m tests.sim one PLAN` repeats it.

Children whose strikes leave the same machine and bucket behind (of one block that was being written, each
fate keeps all or nothing) have the same future: the first lives it, the others report that theirs is the
same.

    director    whoever calls `run_all`: starts a root for each group of plans, and gathers what all of them
                report
    root        runs a group's plan without strikes, and forks
    child       was struck; ends with `os._exit`, so that nothing of its parents (buffers, files, tests under
                way) is done twice

A process runs while it holds a token; there are as many as workers. A fork hands the parent's token to the
child, and the parent waits for another. Nothing here has threads: a simulated run has none.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import mmap
import os
import pickle
import signal
import socket
import threading
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import NoReturn

from tests.sim.node import SimNode
from tests.sim.plan import CALM, Plan, Strike
from tests.sim.run import Outcome, Run, run_plan

SILENCE_S = 900.0  # of all processes: they are gone, or run in a circle
FINDINGS_TOLD, FINDING_CHARS = 20, 1000
MESSAGE_BYTES_MAX = 1 << 20
STATES_MAX = 1 << 16
DIGEST_BYTES, INDEX_BYTES = 12, 4
NOTHING: list[str] = []
STATE_BYTES = DIGEST_BYTES + INDEX_BYTES
Point = tuple[str, int]


@dataclass(slots=True)
class Carried:
    """A plan that a process carries: its place among all, and the strikes that are still to come."""

    index: int
    plan: Plan
    left: dict[Point, Strike]

    @staticmethod
    def of(index: int, plan: Plan) -> Carried:
        return Carried(index, plan, {(strike.kind, strike.number): strike for strike in plan.strikes})


@dataclass(slots=True)
class Told:
    """By a process, of plans: how the run went, or (`same_as`) that it goes as another plan's. No plans: a
    root has ended."""

    indexes: list[int] = field(default_factory=list)
    outcome: Outcome = field(default_factory=lambda: Outcome(Plan()))
    same_as: int = -1
    root: int = 0  # process id


class Shared:
    """What all processes of a tree have: a way to the director, tokens, and the states that were met."""

    def __init__(self, workers: int) -> None:
        self.director, self._tellers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.director.settimeout(SILENCE_S)
        self._tellers.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_BYTES_MAX)
        self._tokens, self._mutex = Tokens(workers), Tokens(1)
        self._states = mmap.mmap(-1, STATES_MAX * STATE_BYTES)

    def close(self) -> None:
        self.director.close()
        self._tellers.close()
        self._tokens.close()
        self._mutex.close()
        self._states.close()

    def take_token(self) -> None:
        self._tokens.take()

    def give_token(self) -> None:
        self._tokens.give()

    def tell(self, told: Told) -> None:
        self._tellers.send(pickle.dumps(told))

    def hear(self) -> Told:
        """Raises TimeoutError."""
        told = pickle.loads(self.director.recv(MESSAGE_BYTES_MAX))
        assert isinstance(told, Told)
        return told

    def first_with(self, digest: bytes, index: int) -> int:
        """Who met this state first: another plan, or this one, which is remembered as far as there is
        room."""
        self._mutex.take()
        try:
            at = int.from_bytes(digest[:4], "big") % STATES_MAX
            for _ in range(64):
                slot = slice(at * STATE_BYTES, (at + 1) * STATE_BYTES)
                known = self._states[slot]
                if known[:DIGEST_BYTES] == digest:
                    return int.from_bytes(known[DIGEST_BYTES:], "big")
                if not any(known):
                    self._states[slot] = digest + index.to_bytes(INDEX_BYTES, "big")
                    break
                at = (at + 1) % STATES_MAX
            return index
        finally:
            self._mutex.give()


class Tokens:
    """So many, in a pipe that all processes hold."""

    def __init__(self, count: int) -> None:
        self._read, self._write = os.pipe()
        os.write(self._write, bytes(count))

    def take(self) -> None:
        assert os.read(self._read, 1)

    def give(self) -> None:
        os.write(self._write, b"\0")

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


class Branch:
    """One process of a tree, and the plans that it carries."""

    def __init__(self, shared: Shared, carried: list[Carried]) -> None:
        self._shared = shared
        self._is_root = True
        self._base = b""
        self._run: Run | None = None
        self._struck_at = b""  # the trace up to the last strike; empty: there was none since the last start
        self._carry(carried)

    def _carry(self, carried: list[Carried]) -> None:
        self.carried = {one.index: one for one in carried}
        self._at: dict[Point, list[Carried]] = {}
        for one in carried:
            for point in one.left:
                self._at.setdefault(point, []).append(one)

    def live(self, base: Plan) -> NoReturn:
        """Does not return: not in the process that calls, and not in those that fork off it."""
        run_plan(base, self._prepare)
        raise AssertionError("a run ends in `_on_end`")

    def _prepare(self, run: Run) -> None:
        self._run = run
        self._base = str(run.outcome.plan).encode()
        run.on_end = self._on_end
        run.node.on_point = self._on_point
        run.node.on_restart = self._on_restart

    @property
    def _node(self) -> SimNode:
        assert self._run is not None
        return self._run.node

    def _on_end(self, outcome: Outcome) -> NoReturn:
        self._tell(outcome)
        self._exit()

    def _tell(self, outcome: Outcome, same_as: int = -1) -> None:
        brief = replace(
            outcome, findings=[line[:FINDING_CHARS] for line in outcome.findings[:FINDINGS_TOLD]], lines=[]
        )
        self._shared.tell(Told(list(self.carried), brief, same_as))

    def _exit(self) -> NoReturn:
        self._shared.give_token()
        if self._is_root:
            self._shared.tell(Told(root=os.getpid()))
        os._exit(0)

    def on_death(self, error: BaseException) -> NoReturn:
        """What is no part of a run went wrong."""
        self._on_end(Outcome(Plan(), findings=[f"run-died: {error!r}"]))

    # Strikes.

    def _on_point(self, kind: str, number: int) -> None:
        groups: dict[tuple[str, str], list[Carried]] = {}
        for one in self._at.pop((kind, number), ()):
            if one.index not in self.carried:
                continue  # it went its own way at an earlier strike
            groups.setdefault((one.left.pop((kind, number)).action, one.plan.fate), []).append(one)
        for (action, fate), group in groups.items():
            if len(group) == len(self.carried) or self._forks():
                self._carry(group)
                self._become(Strike(kind, number, action), fate)
                return
            for one in group:
                del self.carried[one.index]
        if groups and not self.carried:
            self._exit()

    def _forks(self) -> bool:
        """True in the child."""
        assert threading.active_count() == 1, threading.enumerate()
        loop = asyncio.get_running_loop()
        if os.fork():
            self._shared.take_token()
            return False
        asyncio._set_running_loop(loop)  # which is known by process
        self._is_root = False
        return True

    def _become(self, strike: Strike, fate: str) -> None:
        run, node = self._run, self._node
        assert run is not None
        run.outcome.plan = next(iter(self.carried.values())).plan
        node.fate_name = fate
        node.plan_strike(strike.kind, strike.number, strike.action)
        self._struck_at = run.world.trace.digest().encode()

    # States.

    def _on_restart(self) -> None:
        """All that the strike has changed is before us: is it new?"""
        run, struck_at, self._struck_at = self._run, self._struck_at, b""
        if run is None or not struck_at or any(one.left for one in self.carried.values()):
            return
        index = min(self.carried)
        first = self._shared.first_with(
            hashlib.sha256(self._base + struck_at + state_of(run)).digest()[:DIGEST_BYTES], index
        )
        if first != index:
            self._tell(run.result(), same_as=first)
            self._exit()


def state_of(run: Run) -> bytes:
    """What a strike leaves behind, as a digest: disk, bucket, what is on its way there, and chance. All else
    was there before it."""
    world, disk = run.world, run.node.disk
    found = hashlib.sha256()
    for path, file in disk.files.items():
        found.update(repr((path, file.is_device, file.is_log, file.pending)).encode())
        found.update(file.durable)
        found.update(file.visible)
        found.update(file.meant or b"")
    for key, (content, modified_ms) in world.bucket.objects.items():
        found.update(repr((key, modified_ms)).encode())
        found.update(content)
    uploads = [(upload.key, upload.state, sorted(upload.parts.items())) for upload in world.bucket.uploads]
    late = [one for one in world.bucket.late if one[0] >= world.loop.time()]
    chance = [rand._random.getstate() for rand in (disk.rand, run.node.rand, world.net.rand)]
    found.update(repr((disk.folders, disk._loose, uploads, late, chance)).encode())
    return found.digest()


# The director.


def grouped(plans: Sequence[Plan]) -> Iterator[tuple[Plan, list[Carried]]]:
    """Those that have a beginning in common, with the plan of that beginning. Where nothing but a strike can
    end a process, fates differ from there on only. A strike between two callbacks is planned from the
    beginning."""
    groups: dict[Plan, list[Carried]] = {}
    for index, plan in enumerate(plans):
        turns = tuple(strike for strike in plan.strikes if strike.kind == "turn")
        is_retention_only = plan.weather == CALM and not turns
        base = replace(plan, strikes=turns, fate="any" if is_retention_only else plan.fate)
        groups.setdefault(base, []).append(Carried.of(index, plan))
    for base, carried in groups.items():
        if len(carried) == 1:
            (one,) = carried
            yield one.plan, [Carried(one.index, one.plan, {})]
        else:
            yield base, carried


def run_all(plans: Iterable[Plan], workers: int) -> Generator[Outcome, None, None]:
    """The outcome of each plan, as they come, without the lines of its trace. What a process that died owed
    is a finding."""
    chosen = list(plans)
    owed = dict(enumerate(chosen))
    with closing(Director(grouped(chosen), workers)) as director:
        while owed:
            told = director.hear()
            if told is None:
                break
            for index, outcome in director.settled(told):
                yield replace(outcome, plan=owed.pop(index))
        for plan in owed.values():
            yield Outcome(plan, findings=["no-outcome: its process died, or runs on without end"])


class Director:
    def __init__(self, groups: Iterator[tuple[Plan, list[Carried]]], workers: int) -> None:
        self._groups = groups
        self._shared = Shared(workers)
        self._roots: dict[int, None] = {}  # process ids
        self._findings: dict[int, list[str]] = {}  # of those that were run
        self._waiting: dict[int, list[Told]] = {}  # whose run goes as this one's
        gc.collect()
        gc.freeze()
        for _ in range(workers):
            self._start_root()

    def _start_root(self) -> None:
        group = next(self._groups, None)
        if group is None:
            return
        pid = os.fork()
        if pid:
            self._roots[pid] = None
            return
        branch = Branch(self._shared, group[1])
        try:
            os.setpgid(0, 0)
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are nobody's to wait for
            self._shared.take_token()
            branch.live(group[0])
        except BaseException as error:
            branch.on_death(error)
        finally:
            os._exit(1)

    def hear(self) -> Told | None:
        """What a process tells; None: nobody tells anything any more."""
        try:
            told = self._shared.hear()
        except TimeoutError:
            return None
        if told.root:
            os.waitpid(told.root, 0)
            del self._roots[told.root]
            self._start_root()
        return told

    def settled(self, told: Told) -> Iterator[tuple[int, Outcome]]:
        """The plans whose outcome is known by this. Those with another's future met what they met, and found
        what that one finds."""
        if told.same_as < 0:
            told.outcome.findings = told.outcome.findings or NOTHING
            for index in told.indexes:
                self._findings[index] = told.outcome.findings
                yield index, told.outcome
        elif told.same_as in self._findings:
            self._waiting[told.same_as] = [*self._waiting.get(told.same_as, ()), told]
            told = replace(told, indexes=[told.same_as])
        else:
            self._waiting.setdefault(told.same_as, []).append(told)
            return
        for index in told.indexes:
            for other in self._waiting.pop(index, ()):
                hits = other.outcome.hits + Counter({"the same state as another": len(other.indexes)})
                for same in other.indexes:
                    yield same, Outcome(other.outcome.plan, findings=self._findings[index], hits=hits)

    def close(self) -> None:
        for pid in self._roots:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._shared.close()
