"""How much is logged: what log.level may say, and what Kafka's broker-logger API may set."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from millrace.broker.settings.log_levels import (
    INHERITED,
    PARTS_MAX,
    LogLevels,
    decide_levels,
    level_name,
    parse_levels,
)
from millrace.protocol.error_codes import ErrorCode as E
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.incremental_alter_configs import AlterableConfig

SET, DELETE, APPEND, SUBTRACT = range(4)
KNOWN = ("root", "millrace.wal")
VALID = "Valid log levels are DEBUG, ERROR, FATAL, INFO, TRACE, WARN"


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Levels are the process's."""
    kept = {name: logging.getLogger(name).level for name in ("", "millrace.wal", "millrace.kraft")}
    yield
    for name, level in kept.items():
        logging.getLogger(name).setLevel(level)


def test_log_level_names_root_and_parts() -> None:
    """Root is INFO where it is not named; a part is below millrace."""
    assert parse_levels("") == {"root": 20}
    assert parse_levels("warn") == {"root": 30}
    assert parse_levels("DEBUG, wal=FATAL,broker.network.server=TRACE") == {
        "root": 10,
        "millrace.wal": 50,
        "millrace.broker.network.server": 5,
    }
    for text in ("LOUD", "wal=", "wal", "=INFO", "java=INFO", "INFO,wal=LOUD", "10"):
        with pytest.raises(ValueError, match="holds"):
            parse_levels(text)


@pytest.mark.parametrize(
    "name", ["wal" + ".a" * 10_000, "broker.conection", "wal..block", "wal.a\nb", "wal.block/log", "wal."]
)
def test_a_logger_that_the_code_has_not_is_not_made(name: str) -> None:
    """It would stay, with one for each dot in its name: some hundred megabytes for a value of 20 KB."""
    before = len(logging.root.manager.loggerDict)
    with pytest.raises(ValueError, match="no such module"):
        parse_levels(f"INFO,{name}=DEBUG")
    LogLevels("INFO").follow(f"INFO,{name}=DEBUG")  # as another release may have stored it
    assert len(logging.root.manager.loggerDict) == before
    assert parse_levels("wal.block=WARN,tasks=INFO,wal.block.log=INFO").keys() == {
        "root", "millrace.wal.block", "millrace.tasks", "millrace.wal.block.log"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("config", "code", "message"),
    [
        (("no.such", SET, "DEBUG"), E.INVALID_CONFIG, "Logger no.such does not exist!"),
        (("no.such", DELETE, None), E.INVALID_CONFIG, "Logger no.such does not exist!"),
        (("", SET, "INFO"), E.INVALID_CONFIG, "Logger  does not exist!"),
        (
            ("root", SET, "debug"),
            E.INVALID_CONFIG,
            f"Cannot set the log level of root to debug as it is not a supported log level. {VALID}",
        ),
        (
            ("root", SET, "OFF"),
            E.INVALID_CONFIG,
            f"Cannot set the log level of root to OFF as it is not a supported log level. {VALID}",
        ),
        (("root", SET, None), E.INVALID_REQUEST, "Null value not supported for : root"),
        (
            ("root", DELETE, None),
            E.INVALID_REQUEST,
            "Removing the log level of the root logger is not allowed",
        ),
        (
            ("millrace.wal", APPEND, "INFO"),
            E.INVALID_REQUEST,
            "APPEND operation is not allowed for the BROKER_LOGGER resource",
        ),
        (
            ("millrace.wal", SUBTRACT, "INFO"),
            E.INVALID_REQUEST,
            "SUBTRACT operation is not allowed for the BROKER_LOGGER resource",
        ),
    ],
)
def test_what_cannot_be_set(config: tuple[str, int, str | None], code: int, message: str) -> None:
    """Apache Kafka 4.3.1's codes and words; nothing else of the request is done."""
    with pytest.raises(KafkaError) as raised:
        decide_levels(
            [AlterableConfig("millrace.wal", SET, "INFO"), AlterableConfig(*config)][
                config[0] == "millrace.wal" :
            ],
            KNOWN,
        )
    assert (raised.value.code, raised.value.message) == (code, message)


def test_a_logger_named_twice_is_refused() -> None:
    """As in Kafka."""
    with pytest.raises(KafkaError, match="duplicate config keys"):
        decide_levels([AlterableConfig("root", SET, "INFO"), AlterableConfig("root", SET, "WARN")], KNOWN)


def test_of_too_many_names_the_first_decide() -> None:
    """Thousands of names are refused by one of the first, for there are not so many loggers."""
    configs = [AlterableConfig(f"no.such-{number}", DELETE, None) for number in range(len(KNOWN) + 1)]
    with pytest.raises(KafkaError, match=r"no\.such-0 does not exist"):
        decide_levels([*configs, AlterableConfig("millrace.wal", SET, None)], KNOWN)


def test_levels_are_bounded() -> None:
    """Each is a walk over all loggers: of 3,600 nobody was answered for 0.3 s."""
    assert parse_levels(",".join(["wal=DEBUG"] * PARTS_MAX)) == {"root": 20, "millrace.wal": 10}
    with pytest.raises(ValueError, match=f"holds {PARTS_MAX + 1} levels: there may be {PARTS_MAX}"):
        parse_levels(",".join(["wal=DEBUG"] * (PARTS_MAX + 1)))


def test_levels_are_set_and_given_back() -> None:
    """What the API set stays over a change of log.level, and falls back to what it says then."""
    assert decide_levels([AlterableConfig("millrace.wal", DELETE, None)], KNOWN) == {
        "millrace.wal": INHERITED
    }
    levels = LogLevels("INFO")
    levels.alter([AlterableConfig("millrace.wal", SET, "TRACE")], validate_only=True)
    assert logging.getLogger("millrace.wal").level == logging.NOTSET
    levels.alter([AlterableConfig("millrace.wal", SET, "TRACE")], validate_only=False)
    levels.follow("WARN,wal=ERROR,kraft=DEBUG")
    assert [levels.listed()[name] for name in ("root", "millrace.wal", "millrace.kraft")] == [
        "WARN",
        "TRACE",
        "DEBUG",
    ]
    levels.alter([AlterableConfig("millrace.wal", DELETE, None)], validate_only=False)
    assert levels.listed()["millrace.wal"] == "ERROR"
    levels.follow("WARN")
    assert {levels.listed()[name] for name in ("root", "millrace.wal", "millrace.kraft")} == {"WARN"}


def test_levels_of_others_have_a_name() -> None:
    """A library may have set any number."""
    assert [level_name(level) for level in (1, 5, 15, 20, 35, 50, 99)] == [
        "TRACE",
        "TRACE",
        "DEBUG",
        "INFO",
        "WARN",
        "FATAL",
        "FATAL",
    ]
