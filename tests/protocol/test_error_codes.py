"""Error codes against the table that kio took from Kafka."""

from __future__ import annotations

import pytest

from millrace.protocol.error_codes import ErrorCode


def test_codes_have_no_gap() -> None:
    """Kafka 4.4 has every code from -1 to 136."""
    assert sorted(ErrorCode) == list(range(-1, 137))


def test_names_and_retriability_are_kafkas() -> None:
    """kio knows the codes of 4.3, to 133; the three of 4.4 are not retriable."""
    kio = pytest.importorskip("kio.schema.errors")
    theirs = {code.value: (code.name.upper(), code.retriable) for code in kio.ErrorCode}
    assert {code.value: (code.name, code.retriable) for code in ErrorCode if code <= 133} == theirs
    assert not any(code.retriable for code in ErrorCode if code > 133)
