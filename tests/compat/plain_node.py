"""`millrace` that writes no level of `millrace.version` and behaves as if it had: a controller of Apache
Kafka ends at a level of a feature that it does not know
(docs/decisions/2026-11-26-members-speak-kafkas-requests.md), and brokers of a cluster need one.

    python -m tests.compat.plain_node serve ...
"""

from __future__ import annotations

import sys

from millrace.broker.__main__ import main
from millrace.kraft import controller
from millrace.kraft.tables.features import (
    METADATA_VERSION,
    MILLRACE_VERSION,
    MILLRACE_VERSION_LEVEL,
    Features,
    bootstrap_records,
)

if __name__ == "__main__":
    plain = [one for one in bootstrap_records() if one.name == METADATA_VERSION]
    own = {MILLRACE_VERSION: MILLRACE_VERSION_LEVEL}
    level = Features.level
    setattr(controller, "bootstrap_records", lambda: plain)  # noqa: B010
    setattr(Features, "level", lambda self, name: own.get(name) or level(self, name))  # noqa: B010
    sys.exit(main())
