"""A process that started at millrace.version 0 has no claim on its node, also when the level is raised while
it runs: it says so.

Why it cannot take one then: docs/bucket.md, at "no claim until it starts again".
"""

from __future__ import annotations

import logging

from millrace.kraft.image.delta import MetadataDelta
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.features import MILLRACE_VERSION

log = logging.getLogger(__name__)


class Unclaimed:
    """To be told of every image."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._is_said = False

    def on_image(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if image.features.has_identities and not self._is_said:
            self._is_said = True
            log.warning(
                "ownership: %s %d is finalized, but this process started below it and has no claim on node "
                "%d: restart it now; "
                "until then a copy of its disks that is started elsewhere is noticed by neither",
                MILLRACE_VERSION,
                image.features.level(MILLRACE_VERSION),
                self._node_id,
            )
