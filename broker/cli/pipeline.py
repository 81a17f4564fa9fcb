"""`millrace pipeline`: becomes a Spark pipeline in an interpreter of its own. There is no process between: a
signal reaches the pipeline itself.

The pipelines are in spark_jobs/, which the broker never imports: they need PySpark and a Java runtime, and
may run at another version on another machine. `--python` names the interpreter that has them; the one that
runs this command by default.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from millrace.broker.cli import RunLoop

PIPELINES = {"ingest": "Kafka topics to a partitioned Parquet table, each record once"}


def run(words: Sequence[str], env: Mapping[str, str], run_loop: RunLoop) -> int:
    import argparse

    parser = argparse.ArgumentParser(
        "millrace pipeline", description="Spark pipelines over the broker's topics."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("list", help="the pipelines there are")
    runner = commands.add_parser("run", help="run one until it is stopped, or once")
    runner.add_argument("pipeline", choices=sorted(PIPELINES))
    runner.add_argument("--config", required=True, metavar="FILE", help="the pipeline's settings, TOML")
    runner.add_argument("--once", action="store_true", help="take what is there now, then end")
    runner.add_argument("--trace", action="store_true", help="show what Spark and Kafka say of an error")
    runner.add_argument(
        "--python", default=sys.executable, metavar="PATH", help="an interpreter that has PySpark"
    )
    given = parser.parse_args(words)
    if given.command == "list":
        for name, text in PIPELINES.items():
            print(f"{name:<10} {text}")
        return 0
    flags = [flag for flag, is_given in (("--once", given.once), ("--trace", given.trace)) if is_given]
    words = ["-m", "millrace.spark_jobs", given.pipeline, "--config", given.config, *flags]
    return become(given.python, words, env)


def become(python: str, words: Sequence[str], env: Mapping[str, str]) -> int:
    """Returns only where there is no such interpreter: 2."""
    from importlib.util import find_spec

    if python == sys.executable and find_spec("pyspark") is None:
        print(
            "millrace: this interpreter has no PySpark: make setup-spark, or pip install "
            "'millrace-kafka[spark]'",
            file=sys.stderr,
        )
        return 2
    try:
        os.execvpe(python, [python, *words], dict(env))
    except OSError as error:
        print(f"millrace: --python {python}: {error.strerror}", file=sys.stderr)
        return 2
