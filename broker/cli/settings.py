"""`millrace settings`: prints docs/settings.md, the reference of every key; with --topics
docs/topic-configs.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millrace.broker.cli import RunLoop


def run(words: Sequence[str], env: Mapping[str, str], run_loop: RunLoop) -> int:
    import argparse

    parser = argparse.ArgumentParser(
        "millrace settings", description="Print the reference of settings, in Markdown."
    )
    parser.add_argument(
        "--topics", action="store_true", help="topic configurations in place of broker settings"
    )
    if parser.parse_args(words).topics:
        from millrace.kraft.topic_config_reference import topic_reference

        print(topic_reference(), end="")
    else:
        from millrace.broker.config import reference

        print(reference(), end="")
    return 0
