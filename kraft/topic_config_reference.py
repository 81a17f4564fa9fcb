"""docs/topic-configs.md: the table of topic configurations as a page. Pure; a test keeps the page current."""

from __future__ import annotations

from millrace.kraft.topic_configs import TOPIC_CONFIGS, ConfigKind, Standing, TopicConfig

_HEAD = """# Topic configurations

Printed by `millrace settings --topics` from the table the controller judges by; edit
`kraft/topic_configs.py`, not this page.

What holds for a topic is, the most specific first: its own value, the broker's dynamic value and the dynamic
default of all brokers under the broker-wide key, the same key in the settings, the default. A change is
obeyed at once.
"""
_PARTS = (
    (Standing.OBEYED, "Obeyed", "They change what a partition does."),
    (Standing.REFUSED, "Refused", "Any value but the default is an error."),
    (Standing.STORED, "Stored and shown", "Kept and shown; without effect here."),
)


def topic_reference() -> str:
    """The page, in Markdown."""
    lines = [_HEAD]
    for standing, title, text in _PARTS:
        rows = [_row(config) for name, config in sorted(TOPIC_CONFIGS.items()) if config.standing is standing]
        if rows:
            head = ["| name | type | default | broker-wide key | meaning |", "|---|---|---|---|---|"]
            lines += [f"## {title}", "", text, "", *head, *rows, ""]
    return "\n".join(lines)


def _row(config: TopicConfig) -> str:
    keys = ", ".join(f"`{synonym.key}`" for synonym in config.synonyms)
    default = f"`{config.default}`" if config.default else "empty"
    kind = ConfigKind(config.kind).name.lower()
    return f"| `{config.name}` | {kind} | {default} | {keys} | {config.doc} |"
