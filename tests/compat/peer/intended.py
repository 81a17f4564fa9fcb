"""The differences from Apache Kafka's answers that are meant, each with its reason: by question, place in the
answer, and what both say there."""

from __future__ import annotations

import re
from typing import NamedTuple


class Intended(NamedTuple):
    """`question` and `path` are patterns of the whole text; `ours` and `kafkas` of what each says there,
    written as Python does."""

    why: str
    question: str
    path: str
    ours: str = ".*"
    kafkas: str = ".*"
    is_fickle: bool = False  # differs now and then

    def fits(self, question: str, path: str, ours: object, kafkas: object) -> bool:
        pairs = (
            (self.question, question),
            (self.path, path),
            (self.ours, repr(ours)),
            (self.kafkas, repr(kafkas)),
        )
        return all(re.fullmatch(pattern, text, re.DOTALL) is not None for pattern, text in pairs)


NEWER = "of Kafka 4.4, beside which there is no release to run yet"
NOT_HERE = "not served here: the feature is turned off"
OWN = "each node has its own"
ORDER = "Kafka's order is a hash table's or a set's: here it is the request's, else that of names"
WORDS = "said in our own words"
OFFSET = "the metadata logs hold different records"
CLOCK = "a time at which something was asked"
QUORUM = r"\.topics\[__cluster_metadata\]\.partitions\[0\]"
HERE_ALONE, THERE_ALONE = ("(?!'nothing').*", "'nothing'"), ("'nothing'", "(?!'nothing').*")

INTENDED: tuple[Intended, ...] = (
    *(Intended(NEWER, "versions.*", rf"\.api_keys\[{key}\]\.max_version") for key in (18, 28, 42, 88, 89)),
    *(Intended(NEWER, "versions.*", rf"\.api_keys\[{key}\]", *HERE_ALONE) for key in (93, 94)),
    *(
        Intended(NOT_HERE, "versions", rf"\.{kind}_features\[{name}\.version\]", *THERE_ALONE)
        for kind in ("finalized", "supported")
        for name in ("group", "share", "streams", "transaction")
    ),
    Intended("the quorum is one voter", "versions", r"\.finalized_features\[kraft\.version\]", *THERE_ALONE),
    Intended(ORDER, "versions", r"\.(finalized|supported)_features, in order"),
    *(
        Intended(
            "one copy, in the store, has no eligible leader replicas",
            "versions",
            rf"\.{kind}_features\[eligible\.leader\.replicas\.version\]",
            *THERE_ALONE,
        )
        for kind in ("finalized", "supported")
    ),
    *(
        Intended(
            "what this broker writes beside Kafka's",
            "versions",
            rf"\.{kind}_features\[millrace\.version\]",
            *HERE_ALONE,
        )
        for kind in ("finalized", "supported")
    ),
    Intended(
        "older metadata is not written", "versions", r"\.supported_features\[metadata\.version\]\.min_version"
    ),
    Intended(OFFSET, "versions", r"\.finalized_features_epoch", is_fickle=True),
    Intended(OFFSET, "quorum", rf"{QUORUM}\.high_watermark", is_fickle=True),
    Intended(OFFSET, "quorum", rf"{QUORUM}\.current_voters\[1\]\.log_end_offset", is_fickle=True),
    Intended(CLOCK, "quorum", rf"{QUORUM}\.current_voters\[1\]\.last_(fetch|caught_up)_timestamp"),
    Intended(OWN, "quorum", rf"{QUORUM}\.current_voters\[1\]\.replica_directory_id"),
    Intended(
        "the quorum has no listener: it is this process",
        "quorum",
        r"\.nodes\[1\]\.listeners\[CONTROLLER\]",
        *THERE_ALONE,
    ),
    Intended(
        "who is there is told beside a partition that is not", "quorum: unknown", r"\.nodes\[1\]", *HERE_ALONE
    ),
    Intended(
        "a request that cannot be answered whole is refused in the same place, and told of the brokers all "
        "the same",
        "metadata: by id",
        r"\.(brokers\[1\]|cluster_id|controller_id)",
    ),
    Intended(OWN, "log dirs: .*", r"\.results\[0\]\.log_dir"),
    Intended(CLOCK, "log dirs: .*", r"\.results\[0\]\.usable_bytes"),
    Intended(OWN, "groups: described.*", r"\.groups\[members\]\.members\[0\]\.member_id"),
    *(
        Intended(ORDER, f"{name}.*", r".*, in order")
        for name in (
            "metadata: (all|none)",
            "metadata: named",
            "log dirs: all",
            "offsets: unknown",
            "groups: described",
            "consumer groups",
        )
    ),
    *(
        Intended(ORDER, f"{name}.*", r".*, in order")
        for name in ("share groups", "streams groups", "configs: a group", "config resources")
    ),
    Intended(
        ORDER, "metadata: by id", r"\.topics, in order", is_fickle=True
    ),  # topics' ids are drawn by chance
    Intended(
        WORDS,
        "(coordinator: of a type that is none|acls: all|scram: one)",
        r".*error_message",
        "'.+'",
        "'.+'",
    ),
    Intended("says more than Kafka", "configs: no topic", r".*error_message", "'.+'", "''"),
    *(
        Intended(NOT_HERE, name, r"\.groups\[[a-z]*\]\.error_(code|message)")
        for name in ("share groups.*", "streams groups", "consumer groups")
    ),
    Intended(NOT_HERE, "transactions: described", r"\.transaction_states\[t?\]\.error_code"),
    Intended(
        "a topic without a result is left out",
        "elections: all",
        r"\.replica_election_results\[\w+\]",
        "'nothing'",
        r".*'partition_result': \[\]}",
    ),
    Intended("how much is logged is set by each", "configs: root logger", r".*\[root\]\.value"),
)
