"""`make docker-test`: the Dockerfiles and compose files as a user has them, in a real engine.

Builds the images and looks into them, then tries what is asked for, each by its own compose file: one node
(single.py), three nodes over an S3 server (cluster.py), and Spark beside them. Takes all of it down, volumes
too. Exit code 1 when something is not as it should be, 2 when there is no engine. DEBIAN_BASE=FILE:
base_image.py.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Collection
from pathlib import Path
from types import FrameType

from tests.docker.cluster import SPARK, STORE, ClusterTrial
from tests.docker.commands import Failed, say
from tests.docker.engine import Engine, Missing, find_engine
from tests.docker.images import Images
from tests.docker.single import SingleTrial

ROOT = Path(__file__).resolve().parents[2]
TRIALS = ("single", "cluster", "spark")  # the last one beside the one before it


def try_all(engine: Engine, images: Images, trials: Collection[str]) -> None:
    """Builds first: afterwards an engine of our own reaches nothing. Raises Failed."""
    single, cluster = SingleTrial(engine), ClusterTrial(engine)
    is_with_spark = "spark" in trials
    is_with_cluster = is_with_spark or "cluster" in trials
    names = [single.containers.image(single.name)] * ("single" in trials)
    names += [cluster.containers.image(name) for name in cluster.nodes] * is_with_cluster
    images.look_inside(names[0], images.build(ROOT / "Dockerfile", ROOT, names))
    if is_with_cluster:
        folder = ROOT / "tests/s3server"
        images.build(folder / "Dockerfile", folder, [cluster.containers.image(STORE)])
    if is_with_spark:
        images.build(ROOT / "spark_jobs/Dockerfile", ROOT, [cluster.containers.image(SPARK)])
    engine.serve()
    if "single" in trials:
        try:
            single.all_in_order()
        finally:
            single.containers.take_down()
    if is_with_cluster:
        try:
            cluster.all_in_order(is_with_spark=is_with_spark)
        finally:
            cluster.take_down()


def on_terminated(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)  # through every `finally`


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.docker")
    parser.add_argument(
        "--debian-base", type=Path, metavar="FILE", help="where no registry answers (base_image.py)"
    )
    parser.add_argument(
        "--only", nargs="+", choices=TRIALS, default=TRIALS, help="in place of all; spark brings cluster"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, on_terminated)
    began = time.monotonic()
    try:
        engine = find_engine()
        try:
            images = Images(engine, options.debian_base)
            try:
                try_all(engine, images, options.only)
            finally:
                images.close()
        finally:
            engine.close()
    except Missing as missing:
        say(str(missing))
        return 2
    except Failed as failed:
        say(f"FAILED: {failed}")
        return 1
    say(f"All as it should be, {time.monotonic() - began:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
