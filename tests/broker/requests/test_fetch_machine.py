"""The course of a Fetch, as dialogues in tests/transcripts/fetch (transcript.py), by the commands of
fetch_dialogue.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.broker.requests import fetch_machine
from millrace.broker.requests.fetch_machine import (
    TRANSITIONS,
    FetchEffect,
    FetchEvent,
    FetchMachine,
    FetchState,
)
from tests import transcript
from tests.broker.fetch_dialogue import FetchDialogue, Pass

TRANSCRIPTS = transcript.transcripts("fetch")


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    transcript.check(path, FetchDialogue().say)


def test_the_transcripts_take_every_transition(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is found, and each row of the table is taken by some dialogue, but for what a request that
    is done is told."""
    taken = []

    class Recording(dict[tuple[FetchState, FetchEvent], tuple[FetchState, FetchEffect]]):
        def __getitem__(self, row: tuple[FetchState, FetchEvent]) -> tuple[FetchState, FetchEffect]:
            taken.append(row)
            return super().__getitem__(row)

    monkeypatch.setattr(fetch_machine, "TRANSITIONS", Recording(TRANSITIONS))
    for path in TRANSCRIPTS:
        dialogue = FetchDialogue()
        for command in transcript.commands(path):
            dialogue.say(command)
    assert [row for row in TRANSITIONS if row[0] is not FetchState.DONE and row not in taken] == []


def test_every_state_leads_to_done_and_done_leads_nowhere() -> None:
    """Whatever happens a request ends, once: only a transition into DONE answers, drops or fails it."""
    into_done = [row for row, (state, _) in TRANSITIONS.items() if state is FetchState.DONE]
    assert {state for state, _ in into_done} == set(FetchState)
    ends = (FetchEffect.ANSWER, FetchEffect.DROP, FetchEffect.FAIL)
    for (before, _), (after, effect) in TRANSITIONS.items():
        assert (effect in ends) is (after is FetchState.DONE and before is not FetchState.DONE)
        if before is FetchState.DONE:
            assert (after, effect) == (FetchState.DONE, FetchEffect.NOTHING)


def test_what_expired_is_never_delayed_again() -> None:
    """It is answered with what there is, however little that is."""
    for is_late in (False, True):
        machine = FetchMachine(100, False)
        machine.deadline_s = 5.0
        assert machine.on_pass(Pass(1000, openings=[1])) is FetchEffect.OPEN
        machine.on_expired()
        machine.on_opened(1.0, is_late=is_late)
        assert machine.on_pass(Pass(1000, remote=[1])) is FetchEffect.READ_REMOTE
        assert machine.on_remote_read(Pass(1000), 1.0) is FetchEffect.ANSWER


def test_an_event_that_cannot_come_is_a_defect() -> None:
    """A remote read does not end while partitions are being opened."""
    machine = FetchMachine(100, False)
    machine.on_pass(Pass(1000, openings=[1]))
    with pytest.raises(KeyError):
        machine.on_remote_read(Pass(1000), 0.0)
