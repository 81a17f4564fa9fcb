"""What holds for every message at every version: round trips, truncation, damage, unknown tags, surplus
bytes."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.protocol.apis import ALL
from millrace.protocol.compile import decoder, encoder
from millrace.protocol.errors import WireError
from millrace.protocol.primitives import tag_section
from tests.protocol.values import CASES, KINDS, build, case_name

UNKNOWN_TAG = 9_999


def samples(kind: type[Any], count: int, *, tame: bool = False) -> list[tuple[int, Any, bytes]]:
    """(version, message, bytes), `count` of them for each version of `kind`."""
    found = []
    for version in kind.VERSIONS:
        for seed in range(count):
            message = build(Random(f"{kind.__name__} {version} {seed}"), kind, version, tame=tame)
            found.append((version, message, encoder(kind, version)(message)))
    return found


def test_declarations_agree_with_the_list_of_apis() -> None:
    """A message is declared for exactly the versions that the list of APIs tells clients of."""
    for api in ALL:
        assert api.versions == api.request_type.VERSIONS
        assert api.versions == api.response_type.VERSIONS


@pytest.mark.parametrize("kind", KINDS, ids=case_name)
def test_round_trip(kind: type[Any]) -> None:
    """What is encoded decodes to the same, at every version, whatever sort of buffer holds it and where."""
    for version, message, raw in samples(kind, 3):
        decode = decoder(kind, version)
        assert decode(raw, 0) == (message, len(raw))
        shifted = memoryview(bytearray(b"\xff\xff" + raw + b"\xff\xff\xff"))
        assert decode(shifted, 2) == (message, len(raw) + 2)


@pytest.mark.parametrize("kind", KINDS, ids=case_name)
def test_truncation_at_every_byte(kind: type[Any]) -> None:
    """No strict prefix of a message is a message: each is a WireError."""
    for version, _message, raw in samples(kind, 1, tame=True):
        decode = decoder(kind, version)
        for length in range(len(raw)):
            try:
                found = decode(raw[:length], 0)
            except WireError:
                continue
            pytest.fail(f"version {version}: {length} of {len(raw)} bytes gave {found}")


@pytest.mark.parametrize("kind", KINDS, ids=case_name)
def test_damage_is_a_wire_error_or_another_value(kind: type[Any]) -> None:
    """Bytes that were overwritten give another message or a WireError, and nothing else escapes."""
    random = Random(kind.__name__)
    for version, _message, raw in samples(kind, 1):
        decode = decoder(kind, version)
        for _ in range(10):
            damaged = bytearray(raw)
            for _ in range(random.choice((1, 1, 4))):
                if damaged:
                    damaged[random.randrange(len(damaged))] = random.choice(
                        (0, 0x7F, 0x80, 0xFF, random.randrange(256))
                    )
            try:
                _value, pos = decode(damaged, 0)
                assert pos <= len(damaged)
            except WireError:
                pass


def test_unknown_tags_are_stepped_over() -> None:
    """A tagged field that nobody here knows changes nothing, in every flexible version of every message."""
    for kind, version in CASES:
        if kind.VERSIONS.is_flexible(version):
            raw = encoder(kind, version)(kind())
            assert raw[-1:] == b"\0", "a message of defaults ends in an empty tagged section"
            tagged = raw[:-1] + tag_section([(UNKNOWN_TAG, b"whatever")])
            assert decoder(kind, version)(tagged, 0) == (kind(), len(tagged))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(CASES), st.randoms(use_true_random=False))
def test_round_trip_of_any_value(case: tuple[type[Any], int], random: Random) -> None:
    """The same as above, with values that hypothesis searches and shrinks."""
    kind, version = case
    message = build(random, kind, version)
    raw = encoder(kind, version)(message)
    assert decoder(kind, version)(raw, 0) == (message, len(raw))


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(CASES), st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_wire_error(case: tuple[type[Any], int], raw: bytes) -> None:
    """Decoders raise WireError and nothing else, whatever they are given."""
    kind, version = case
    try:
        value, pos = decoder(kind, version)(raw, 0)
    except WireError:
        return
    assert pos <= len(raw)
    assert type(value) is kind
