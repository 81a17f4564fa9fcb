"""How clients reach controllers: a request goes to one of them, with a delay; an answer, or none, comes back.

What is refused for want of a leader is told apart from what came to nothing known: NotLeader was never
proposed. Every answer that is owed is remembered, so that one that never comes is seen.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

from millrace.kraft.errors import LogFull, NotLeader, ProposalDropped, TooManyCommands
from millrace.kraft.image.image import MetadataImage
from millrace.runtime.errors import MillraceError
from millrace.runtime.rand import Rand
from tests.sim.loop import Life, SimLoop
from tests.sim.quorum.history import History
from tests.sim.quorum.replica import Replica
from tests.sim.quorum.watch import Watch
from tests.sim.trace import Note

PATIENCE_S = 1.5  # of a client; after that it does not know


@dataclass(frozen=True, slots=True)
class Answer:
    """`image` is what the node that answered had published."""

    response: Any
    image: MetadataImage


class Unknown(Exception):
    """Perhaps it was carried out, perhaps not, perhaps it will be."""


class Refused(Exception):
    """It was not proposed, or is given up unseen."""


@dataclass(slots=True)
class Owed:
    life: Life
    node_id: int
    what: str
    reply: asyncio.Future[Any]


class Gate:
    def __init__(
        self,
        loop: SimLoop,
        rand: Rand,
        note: Note,
        replicas: dict[int, Replica],
        watch: Watch,
        history: History,
    ) -> None:
        self.hits: Counter[str] = Counter()
        self.leader = 1  # who is thought to lead
        self._loop = loop
        self._rand = rand
        self._note = note
        self._replicas = replicas
        self._watch = watch
        self._history = history
        self._owed: list[Owed] = []

    async def ask(self, request: Any, node_id: int = 0) -> Answer:
        """Of whom is thought to lead, or of the one that is named. Raises Unknown, Refused."""
        target = node_id or self.leader
        outcome: asyncio.Future[Answer] = self._loop.create_future()
        self._loop.call_later(self._delay_s(), self._reach, target, request, outcome)
        await asyncio.wait([outcome], timeout=PATIENCE_S)
        if not outcome.done():
            self.hits["no answer in time"] += 1
            self._elsewhere(target)
            raise Unknown("no answer")
        try:
            return outcome.result()
        except NotLeader as error:
            self.hits["not leader"] += 1
            if error.leader_id in self._replicas and error.leader_id != target:
                self.leader = error.leader_id
            else:
                self._elsewhere(target)
            raise Refused(repr(error)) from error
        except LogFull as error:
            self.hits["log full"] += 1
            raise Refused(repr(error)) from error
        except ProposalDropped as error:
            self.hits["proposal dropped"] += 1
            raise Unknown(repr(error)) from error
        except TooManyCommands as error:
            raise Refused(repr(error)) from error
        except MillraceError as error:  # it is closing, or its disk failed
            self.hits["closed or failed"] += 1
            self._elsewhere(target)
            raise Unknown(repr(error)) from error

    def _elsewhere(self, target: int) -> None:
        self.leader = 1 + (target + self._rand.below(len(self._replicas))) % len(self._replicas)

    def _delay_s(self) -> float:
        return (500 + self._rand.below(4_000)) / 1e6

    def _reach(self, target: int, request: Any, outcome: asyncio.Future[Answer]) -> None:
        self._replicas[target].call(self._submit, self._replicas[target], request, outcome)

    def _submit(self, replica: Replica, request: Any, outcome: asyncio.Future[Answer]) -> None:
        """In the life of the process."""
        node, life = replica.node, replica.life
        if node is None or life is None:
            return
        reply = node.controller.submit(request)
        what = type(request).__name__
        self._owed.append(Owed(life, replica.node_id, what, reply))

        def answer(reply: asyncio.Future[Any]) -> None:
            error = reply.exception()
            self._note(replica, what, "answered" if error is None else type(error).__name__)
            image = node.publisher.image
            if error is None and replica.node is node:
                self._watch.look(replica)
            if error is None and image.offset > self._watch.committed_end:
                self._history.find("told-uncommitted", f"{replica}: {what} at {image.offset}")
            answered = Answer(reply.result(), image) if error is None else None
            self._loop.call_later(self._delay_s(), give, error, answered)

        def give(error: BaseException | None, answered: Answer | None) -> None:
            if not outcome.done():
                if error is not None:
                    outcome.set_exception(error)
                    outcome.exception()  # whoever waits may have gone
                elif answered is not None:
                    outcome.set_result(answered)

        reply.add_done_callback(answer)

    def check_answered(self, replica: Replica, life: Life | None) -> None:
        """The process owes nobody an answer any more."""
        for owed in self._owed:
            if owed.life is life and not owed.reply.done():
                self._history.find("never-answered", f"{replica}: {owed.what}")
            if owed.life.is_over and owed.reply.done():
                owed.reply.exception()  # whoever would have taken it has gone with the process
        self._owed = [owed for owed in self._owed if not owed.life.is_over and not owed.reply.done()]
