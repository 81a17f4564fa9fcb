"""How an address is shown: by what is known to be no secret, for a key may stand anywhere in one that was
mistyped.

Shown whole: numbers, the words of the options in PLAIN, where a server listens, a bucket's name, a path. Of
all else its beginning, as far as it is of that kind, or nothing. Not here: what an address means
(address.py).
"""

from __future__ import annotations

import re
from collections.abc import Collection

HIDDEN = "***"
# The WAL's are among them: what they mean is said in wal/.
PLAIN = (
    "region",
    "pathStyle",
    "authType",
    "checksumAlgorithm",
    "kind",
    "fence",
    "fencing",
    "hedge",
    "reservation",
    "corruption",
)
_SECRET_NAME = re.compile(r"secret|token|pass|pwd|credential|key", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z][A-Za-z_.-]{0,23}")
_WORD = re.compile(r"[A-Za-z0-9._-]{0,32}")
_NUMBER = re.compile(r"[0-9]{1,15}[A-Za-z]{0,3}")
_SERVER = re.compile(r"(https?://)?([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(?=[/?#]|$)")
_BUCKET_PATH = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*/?")
_BUCKET_START = re.compile(r"[A-Za-z0-9._-]*")
_ARN = re.compile(r"arn:[A-Za-z0-9:/._-]+")
_KEY_ID_CHARS = 4  # enough to tell one from another, and of a secret in its place too little


def shown_name(name: str, known: Collection[str] = ()) -> str:
    """An option's name; one that holds more than letters is shown as far as it is one of `known`."""
    found = _NAME.match(name)
    start = found[0] if found else ""
    if start == name:
        return name
    return (start if start in known else "") + HIDDEN


def shown_value(name: str, value: str) -> str:
    if name == "endpoint":
        return shown_server(value)
    if name == "accessKey":
        return value[:_KEY_ID_CHARS] + HIDDEN
    if _NUMBER.fullmatch(value) and not _SECRET_NAME.search(name):
        return value
    if name not in PLAIN:
        return HIDDEN
    found = _WORD.match(value)
    assert found is not None, "it matches nothing as well"
    return value if found[0] == value else found[0] + HIDDEN


def shown_server(endpoint: str) -> str:
    found = None if "@" in endpoint else _SERVER.match(endpoint)
    if found is None:
        return HIDDEN
    return endpoint if endpoint in (found[0], f"{found[0]}/") else f"{found[0]}{HIDDEN}"


def shown_target(scheme: str, target: str) -> str:
    """A path; of a bucket no more than its name and a prefix can be."""
    before, at, rest = target.rpartition("@")
    if at and (scheme != "file" or "/" not in before):
        return f"{HIDDEN}@{shown_target(scheme, rest)}"
    if scheme == "file" or _BUCKET_PATH.fullmatch(target) or _ARN.fullmatch(target):
        return target
    found = _BUCKET_START.match(target)
    assert found is not None, "it matches nothing as well"
    return found[0] + (HIDDEN if found[0] != target else "")
