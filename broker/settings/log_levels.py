"""How much each part of a node logs: what `log.level` says, and over it what Kafka's broker-logger API sets
until the process ends.

    log.level       LEVEL for all, and NAME=LEVEL for a part of the code (wal=DEBUG, broker.connection=WARN),
                    by commas; follows the settings, also while a broker runs
    BROKER_LOGGER   by logger names as the log shows them (millrace.wal), and root: IncrementalAlterConfigs
                    sets one, or gives it back to log.level

Levels are Kafka's; nothing here logs below DEBUG, so that TRACE is as DEBUG. Kept true: a request is applied
whole or not at all. Not here: where lines go (cli/serve.py).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path

from millrace.kraft.commands.configs import Operation
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.incremental_alter_configs import AlterableConfig

log = logging.getLogger(__name__)
KEY = "log.level"
PROJECT, ROOT = "millrace", "root"
PARTS = ("broker", "kraft", "protocol", "runtime", "s3stream", "tasks", "wal")
LEVELS = {"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40, "FATAL": 50}
INHERITED = logging.NOTSET
PARTS_MAX = 32  # of log.level: each that is set is a walk over all loggers


def parse_levels(text: str) -> dict[str, int]:
    """The level of each logger that a text of log.level names; root is always there. Raises ValueError."""
    found = {ROOT: LEVELS["INFO"]}
    parts = list(filter(None, (part.strip() for part in text.split(","))))
    if len(parts) > PARTS_MAX:
        raise ValueError(f"holds {len(parts)} levels: there may be {PARTS_MAX}")
    for part in parts:
        name, equals, level = part.rpartition("=")
        if level.strip().upper() not in LEVELS:
            raise ValueError(f"holds {part!r}: the level is none of {', '.join(LEVELS)}")
        if equals:
            _check_name(part, name.strip())
        found[f"{PROJECT}.{name.strip()}" if equals else ROOT] = LEVELS[level.strip().upper()]
    return found


def _check_name(part: str, name: str) -> None:
    """A logger stays in memory until the process ends, with one more for each dot in its name: only those
    that the code has may be named."""
    if name.split(".")[0] not in PARTS:
        raise ValueError(f"holds {part!r}: the name begins with none of {', '.join(PARTS)}")
    if name not in PARTS and name not in modules():
        raise ValueError(
            f"holds {part!r}: there is no such module (a name is that of a log line, without {PROJECT}.)"
        )


@cache
def modules() -> frozenset[str]:
    """Packages and modules of this installation, as `log.level` names them."""
    root = Path(__file__).parents[2]
    found = [
        path.relative_to(root).with_suffix("").parts for part in PARTS for path in (root / part).rglob("*.py")
    ]
    return frozenset(".".join(words).removesuffix(".__init__") for words in found)


def decide_levels(configs: Sequence[AlterableConfig], known: Collection[str]) -> dict[str, int]:
    """What a change of loggers makes of each that it names, INHERITED where it is given back. KafkaError for
    one that cannot be, in Kafka's words.

    Of more names than there are loggers, one of the first is refused, and the rest is not looked at."""
    configs = configs[: len(known) + 1]
    nulls = [one.name for one in configs if one.value is None and one.config_operation != Operation.DELETE]
    if nulls:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {','.join(nulls)}")
    if any(count > 1 for count in Counter(one.name for one in configs).values()):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    return {one.name: _decide_one(one, known) for one in configs}


def _decide_one(config: AlterableConfig, known: Collection[str]) -> int:
    operation, name = config.config_operation, config.name
    if operation in (Operation.APPEND, Operation.SUBTRACT):
        text = f"{Operation(operation).name} operation is not allowed for the BROKER_LOGGER resource"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    if operation not in (Operation.SET, Operation.DELETE):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown config operation {operation}")
    if name not in known:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {name} does not exist!")
    if operation == Operation.DELETE:
        if name == ROOT:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "Removing the log level of the root logger is not allowed"
            )
        return INHERITED
    level = LEVELS.get(config.value or "")
    if level is None:
        text = f"Cannot set the log level of {name} to {config.value} as it is not a supported log level."
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{text} Valid log levels are {', '.join(sorted(LEVELS))}")
    return level


class LogLevels:
    """Of this process. `text`: log.level as it is applied already (`apply_levels`)."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._asked: dict[str, int] = {}  # by the API, over what log.level says

    def listed(self) -> Mapping[str, str]:
        """The level that holds, by logger, in order of names."""
        return {name: level_name(logger.getEffectiveLevel()) for name, logger in loggers().items()}

    def follow(self, text: str) -> None:
        """log.level is `text` from now on; what the API set stays over it."""
        if text == self._text:
            return
        try:
            before, after = parse_levels(self._text), parse_levels(text)
        except ValueError as error:  # another release stored it
            log.error(
                "log.level: what is set dynamically cannot be followed: it %s; set it anew, or delete it",
                error,
            )
            return
        self._text = text
        for name in {**before, **after}:
            if name not in self._asked:
                _set(name, after.get(name, INHERITED))

    def alter(self, configs: Sequence[AlterableConfig], *, validate_only: bool) -> None:
        """Sets and gives back. KafkaError, with nothing changed, where one of them cannot be."""
        decided = decide_levels(configs, loggers())
        if validate_only:
            return
        own = parse_levels(self._text)
        for name, level in decided.items():
            if level == INHERITED:
                self._asked.pop(name, None)
                _set(name, own.get(name, INHERITED))
            else:
                self._asked[name] = level
                _set(name, level)


def apply_levels(text: str) -> None:
    """As the process starts."""
    for name, level in parse_levels(text).items():
        _set(name, level)


def loggers() -> dict[str, logging.Logger]:
    """Root, the parts of the code, and every logger that was asked for since the process began, by name and
    in its order."""
    for name in (PROJECT, *(f"{PROJECT}.{part}" for part in PARTS)):
        logging.getLogger(name)
    made = {
        name: one for name, one in logging.root.manager.loggerDict.items() if isinstance(one, logging.Logger)
    }
    return dict(sorted({ROOT: logging.getLogger(), **made}.items()))


def level_name(level: int) -> str:
    """Kafka's name of it; of one between two, the lower."""
    names = [name for name, least in LEVELS.items() if least <= level]
    return names[-1] if names else "TRACE"


def _set(name: str, level: int) -> None:
    logging.getLogger(None if name == ROOT else name).setLevel(level)
