"""The course of a connection, as dialogues in tests/transcripts/connection (transcript.py).

A command is an event, or `connection` for a new one; it prints the state that it led to, and the effect.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.broker.network.connection_machine import (
    TRANSITIONS,
    ConnectionEffect,
    ConnectionEvent,
    ConnectionMachine,
    ConnectionState,
)
from tests import transcript

TRANSCRIPTS = transcript.transcripts("connection")
PAUSES = (ConnectionEffect.PAUSE, ConnectionEffect.PAUSE_AND_YIELD)
YIELDS = (ConnectionEffect.YIELD, ConnectionEffect.PAUSE_AND_YIELD)
READING, YIELDING, DRAINING = ConnectionState.READING, ConnectionState.YIELDING, ConnectionState.DRAINING


class ConnectionDialogue:
    """`taken`: each event with the state that it came in."""

    def __init__(self) -> None:
        self.machine = ConnectionMachine()
        self.taken: list[tuple[ConnectionState, ConnectionEvent]] = []

    def say(self, command: str) -> list[str]:
        if command == "connection":
            self.machine = ConnectionMachine()
            return []
        event = ConnectionEvent[command.upper()]
        self.taken.append((self.machine.state, event))
        effect = self.machine.on(event)
        return [f"{self.machine.state.name.lower()}: {effect.name.lower()}"]


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    transcript.check(path, ConnectionDialogue().say)


def test_the_transcripts_take_every_transition() -> None:
    """The folder is found, and each row of the table is taken by some dialogue."""
    dialogue = ConnectionDialogue()
    for path in TRANSCRIPTS:
        for command in ("connection", *transcript.commands(path)):
            dialogue.say(command)
    assert [row for row in TRANSITIONS if row not in dialogue.taken] == []


@pytest.mark.parametrize("row", TRANSITIONS, ids=lambda row: f"{row[0].name}-{row[1].name}")
def test_the_transport_is_read_in_one_state_alone(row: tuple[ConnectionState, ConnectionEvent]) -> None:
    """It is paused exactly where that state is left and resumed where it is entered; a turn is asked for
    where one is waited for."""
    before, (after, effect) = row[0], TRANSITIONS[row]
    assert (effect in PAUSES) is (before is READING and after is not READING)
    assert (effect is ConnectionEffect.RESUME) is (before is not READING and after is READING)
    assert (effect in YIELDS) is (before is not YIELDING and after is YIELDING)


def test_what_ends_goes_on_ending() -> None:
    """Every state has a way to the end and to an abort, and none leads back."""
    for state in ConnectionState:
        assert TRANSITIONS[state, ConnectionEvent.ABORT][0] is ConnectionState.CLOSING
        assert TRANSITIONS[state, ConnectionEvent.END][0] is max(state, DRAINING)
    for (before, _), (after, effect) in TRANSITIONS.items():
        if before >= DRAINING:
            assert after >= before
            assert effect is ConnectionEffect.NOTHING


def test_an_event_that_cannot_come_is_a_defect() -> None:
    """A connection that reads stands in no line, and is given no room."""
    with pytest.raises(KeyError):
        ConnectionMachine().on(ConnectionEvent.ROOM)
