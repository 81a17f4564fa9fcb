"""The version of this source, as pyproject.toml has it (tested), where a start need not look for installed
metadata."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
