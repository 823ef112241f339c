"""Recall handles: URL-safe Base64 of ``v1 topic broker timestamp id``.

RocketMQ: RecallMessageHandle.
"""

from __future__ import annotations

import base64
import binascii

from oberth.client.messages import MESSAGE_ILLEGAL
from oberth.errors import MQClientError


def broker_of_recall_handle(handle: str) -> str:
    """The broker that keeps the message of a handle.

    Raises:
        MQClientError: it does not parse.
    """
    try:
        text = base64.urlsafe_b64decode(handle + "=" * (-len(handle) % 4)).decode()
    except (binascii.Error, ValueError):
        text = ""
    parts = text.split(" ")
    if len(parts) != 5 or parts[0] != "v1":
        raise MQClientError(
            f"{handle[:80]!r} is no recall handle: the result of a delayed message's send has "
            "one, as recall_handle",
            MESSAGE_ILLEGAL,
        )
    return parts[2]
