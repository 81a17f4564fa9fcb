"""The keys whose meaning would be broken in silence if they were ignored: with a value other than the default
the broker does not start.

Pure: rows only. Classes that a Kafka operator names here are Java's and cannot be loaded, and each of them
guards something.
"""

from __future__ import annotations

from millrace.broker.settings.key import CLASS, LIST, REFUSED, STRING, Key

REFUSED_KEYS: tuple[Key, ...] = (
    Key(
        "authorizer.class.name",
        STRING,
        "",
        "There is no authorizer in this release; without it everybody may do everything.",
        REFUSED,
    ),
    Key(
        "security.inter.broker.protocol",
        STRING,
        "PLAINTEXT",
        "Nodes speak in plain text only, in this release.",
        REFUSED,
    ),
    Key("create.topic.policy.class.name", CLASS, None, "A policy in Java cannot be asked.", REFUSED),
    Key("alter.config.policy.class.name", CLASS, None, "A policy in Java cannot be asked.", REFUSED),
    Key("client.quota.callback.class", CLASS, None, "A quota callback in Java cannot be asked.", REFUSED),
    Key(
        "principal.builder.class",
        CLASS,
        "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
        "A principal builder in Java cannot be asked.",
        REFUSED,
    ),
    Key("config.providers", LIST, "", "Values that name a provider would be taken as they stand.", REFUSED),
)
