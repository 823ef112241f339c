"""What documents of fastjson hold beyond JSON, and how much of it."""

from __future__ import annotations

from typing import Any, Final

DEPTH_MAX: Final = 64
"""Objects and lists inside each other; Apache's deepest document has 7."""

LENIENT_SIZE_MAX: Final = 16 * 1024
"""Bytes of a request's body that is no JSON proper: read in Python, up to 1 us a byte."""

NUMBER_LENGTH_MAX: Final = 400
"""Characters of one number; int() takes quadratic time."""


class ObjectKey(tuple[tuple[str, Any], ...]):
    """An object that is the key of another: its (name, value) pairs, in the order of the text."""

    __slots__ = ()

    def __getitem__(self, name: Any) -> Any:
        """The value under a name; a tuple's item under an index."""
        if isinstance(name, str):
            for key, value in self:
                if key == name:
                    return value
            raise KeyError(name)
        return super().__getitem__(name)

    def as_dict(self) -> dict[str, Any]:
        """The object as an ordinary one."""
        return dict(self)
