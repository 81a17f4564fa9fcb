"""Decides that an incarnation may claim a number of a series. Pure.

Kept true: a claim follows the newest one in the bucket, which this log knows; the claim that stands is never
forgotten before the one that follows it is in the bucket. Not here: the bucket (broker/identity/claims.py).
"""

from __future__ import annotations

from millrace.kraft.commands.decision import Decision
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.claims import Claim
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.claim_node import ClaimNodeRequest, ClaimNodeResponse
from millrace.protocol.stream_records import NodeClaimRecord


def decide_claim_node(image: MetadataImage, request: ClaimNodeRequest) -> Decision:
    """Raises KafkaError FENCED_MEMBER_EPOCH where the claim that was found is unknown here, INVALID_REQUEST
    where the new one does not follow it, or at millrace.version 0."""
    series, found = request.series, Claim(request.found_number, request.found_incarnation)
    if not image.features.has_identities:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "claims are made from millrace.version 1 on")
    if not 0 <= found.number < request.number or not any(request.incarnation):
        text = f"claim {request.number} of series {series} does not follow {found.number}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    if found.number and not image.claims.has_incarnation(series, found.incarnation):
        text = f"claim {found.number} of series {series} is of an incarnation that this log does not know"
        raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, text)
    claims = [Claim(request.number, request.incarnation)]
    if found.number:
        claims.insert(0, found)
    # In this order: the claim that stands keeps those before it, and the new one keeps the claim that stands.
    new = [claim for claim in claims if not image.claims.is_known(series, claim)]
    return Decision(
        ClaimNodeResponse(), [NodeClaimRecord(series, claim.number, claim.incarnation) for claim in new]
    )
