"""`millrace` whose new clusters begin at an earlier level of `millrace.version`, as those of an earlier
release did. It supports what this release does, so that the level can be raised.

    MILLRACE_TEST_LEVEL=2 python -m tests.live.earlier_node serve ...
"""

from __future__ import annotations

import os
import sys

from millrace.broker.__main__ import main
from millrace.kraft import controller
from millrace.kraft.tables.features import MILLRACE_VERSION, bootstrap_records

LEVEL = "MILLRACE_TEST_LEVEL"

if __name__ == "__main__":
    records = bootstrap_records()
    for one in records:
        if one.name == MILLRACE_VERSION:
            one.feature_level = int(os.environ[LEVEL])
    setattr(controller, "bootstrap_records", lambda: records)  # noqa: B010
    sys.exit(main())
