"""How old a signed date may be, in the forms of the official clients, and what is no date."""

from __future__ import annotations

import pytest

from oberth.proxy.authentication import Signer, check_age
from oberth.proxy.codes import StatusError

NOW_MS = 1_700_000_000_000  # 2023-11-14T22:13:20Z


@pytest.mark.parametrize(
    ("text", "is_taken"),
    [
        ("20231114T221320Z", True),
        ("20231114T221219Z", False),  # 61 s
        ("20231114T221421Z", False),  # ahead
        ("2023-11-14T22:13:20.123456789Z", True),  # Rust
        ("2023-11-15T00:13:20.5+02:00", True),
        ("2023-11-14T22:13:20+02:00", False),
        ("2023-11-14T22:13:20", False),
        ("2023-11-14", False),
        ("0001-01-01T00:00:00+14:00", False),
        ("2023-", False),
        ("", False),
        ("9" * 5_000, False),
        ("2023-" + "9" * 5_000, False),
    ],
)
def test_age_of_a_date(text: str, is_taken: bool) -> None:
    signer = Signer("user", text.encode(), b"")
    if is_taken:
        check_age(signer, NOW_MS, 60)
    else:
        with pytest.raises(StatusError, match=r"x-mq-date-time .* is (no date|-?\d+ s old)"):
            check_age(signer, NOW_MS, 60)
