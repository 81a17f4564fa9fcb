"""`python -m millrace.spark_jobs JOB ...`: runs one pipeline in this interpreter. `millrace pipeline run`
starts this as a process of its own."""

from __future__ import annotations

import importlib
import sys

JOBS = ("ingest",)


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] not in JOBS:
        print(
            "usage: python -m millrace.spark_jobs JOB --config FILE [--once] [--trace]\njobs: "
            f"{', '.join(JOBS)}",
            file=sys.stderr,
        )
        return 2
    job = importlib.import_module(f"millrace.spark_jobs.jobs.{sys.argv[1]}")
    return int(job.main(sys.argv[2:]))


if __name__ == "__main__":
    raise SystemExit(main())
