"""RecallHandle: what a producer shows to take a timed message back.

URL-safe Base64 of ``v1 topic brokerName deliverMs uniqueKey``, joined by blanks. RocketMQ:
RecallMessageHandle.HandleV1.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final, NamedTuple

from oberth.formats.java_numbers import java_long

VERSION: Final = "v1"
HANDLE_SIZE_MAX: Final = 2048
"""Characters of a handle; topic, broker and key are far shorter."""


class RecallHandle(NamedTuple):
    """One message that can be taken back."""

    topic: str
    broker_name: str
    deliver_ms: int
    unique_key: str

    def encode(self) -> str:
        """The handle's text."""
        text = f"{VERSION} {self.topic} {self.broker_name} {self.deliver_ms} {self.unique_key}"
        return base64.urlsafe_b64encode(text.encode("utf-8", "replace")).decode()


def decode_recall_handle(text: str) -> RecallHandle:
    """The handle that a producer shows.

    Raises:
        ValueError: it does not parse, or is of another version.
    """
    if len(text) > HANDLE_SIZE_MAX:
        raise ValueError(f"recall handle of {len(text)} characters, allowed {HANDLE_SIZE_MAX}")
    try:
        parts = base64.urlsafe_b64decode(text.encode("ascii")).decode().split(" ")
    except (binascii.Error, UnicodeError):
        raise ValueError("recall handle is invalid") from None
    deliver_ms = java_long(parts[3], -1) if parts[0] == VERSION and len(parts) == 5 else -1
    if deliver_ms < 0:
        raise ValueError("recall handle is invalid")
    return RecallHandle(parts[1], parts[2], deliver_ms, parts[4])
