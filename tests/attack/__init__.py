"""Attacks on a live broker, as permanent tests: one client, one clock or one volume against everybody else.

Each test prints its figure (another client's latency meanwhile, objects made, memory held) and asserts a
bound on it. The suite runs short forms; `make attack` sets MILLRACE_ATTACK=full and runs the long ones.
"""

from __future__ import annotations

import os

IS_FULL = os.environ.get("MILLRACE_ATTACK") == "full"
# Of latencies: the long forms run on a quiet machine, the suite on any, beside whatever else it does. Nobody
# who is held up for good is answered within either.
SLACK = 1 if IS_FULL else 5
