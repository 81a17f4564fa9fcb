"""`python -m millrace`, which is `millrace`."""

from __future__ import annotations

import sys

from millrace.broker.__main__ import main

sys.exit(main())
