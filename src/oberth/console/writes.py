"""Writes: what changes a cluster is first shown, then confirmed, then noted and done.

A form that wants something done goes to ``/write/NAME``. The answer is a page that says what would
change, with the form's fields and a confirmation signed by this process over them, the session and
what must not change meanwhile. Only a form with such a confirmation does anything, once.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from oberth.console.security import Form, Session
from oberth.errors import OptionError

CONFIRM: Final = "_confirm"
USED_MAX: Final = 10_000
"""Confirmations remembered; older ones are refused by their age."""

AGE_MAX_S: Final = 900.0
SECRET_FIELDS: Final = frozenset({"password"})
AUDIT_FIELD_MAX: Final = 500
"""Characters of a field that the audit log keeps; a body can have four million."""


@dataclass(slots=True)
class Plan:
    """The effects of a write, shown before it is done.

    Attributes:
        title: a question's subject: ``Delete topic Orders``.
        verb: of the button.
        changes: what, before, after.
        warnings: losses and other consequences.
        binding: a value that must be the same when the write is confirmed.
        is_dangerous: whether something cannot be had back.
    """

    title: str
    verb: str
    changes: list[tuple[str, str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    binding: str = ""
    is_dangerous: bool = False


@dataclass(slots=True)
class Outcome:
    """The result of a write.

    Attributes:
        text: in a sentence.
        is_done: all of it.
        header: of ``rows``.
        rows: more about it.
        links: where to go on: text and address.
    """

    text: str
    is_done: bool = True
    header: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()
    links: list[tuple[str, str]] = field(default_factory=list)


class Confirmations:
    """Signs each plan that was shown, and accepts its confirmation once.

    Args:
        sign: makes a word that only this process makes.
        now_s: the time.
    """

    def __init__(
        self, sign: Callable[..., str], now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._sign = sign
        self._now_s = now_s
        self._used: OrderedDict[str, None] = OrderedDict()

    def make(self, session: Session, name: str, form: Form, plan: Plan) -> str:
        """For the page that shows a plan."""
        nonce = f"{secrets.token_urlsafe(16)}.{round(self._now_s())}"
        return f"{nonce}.{self._word(nonce, session, name, form, plan)}"

    def check(self, word: str, session: Session, name: str, form: Form, plan: Plan) -> bool:
        """Whether just this was shown to just this session; False: show it again.

        Raises:
            OptionError: it was done already.
        """
        nonce, _, signature = word.rpartition(".")
        if not secrets.compare_digest(
            signature.encode(), self._word(nonce, session, name, form, plan).encode()
        ):
            return False
        if self._now_s() - float(nonce.rpartition(".")[2]) > AGE_MAX_S:
            return False
        if nonce in self._used:
            raise OptionError("this was confirmed before and is not done twice")
        self._used[nonce] = None
        if len(self._used) > USED_MAX:
            self._used.popitem(last=False)
        return True

    def take_back(self, word: str) -> None:
        """What `check` accepted was not done, and may be confirmed again."""
        self._used.pop(word.rpartition(".")[0], None)

    def _word(self, nonce: str, session: Session, name: str, form: Form, plan: Plan) -> str:
        return self._sign(
            "write", nonce, session.identifier, name, json.dumps(shown_fields(form)), plan.binding
        )


def shown_fields(form: Form) -> list[tuple[str, str]]:
    """A form's own fields, those with several values too, in a fixed order."""
    return [
        (name, value)
        for name, values in sorted(form.lists.items())
        if name != "csrf" and not name.startswith("_")
        for value in values
    ]


def audit_fields(form: Form) -> dict[str, str]:
    """The fields of a form that the audit log keeps."""
    made: dict[str, str] = {}
    for name, value in shown_fields(form):
        text = "***" if name in SECRET_FIELDS else value
        if len(text) > AUDIT_FIELD_MAX:
            text = f"{text[:AUDIT_FIELD_MAX]}… ({len(value)} characters)"
        made[name] = f"{made[name]}, {text}"[: 4 * AUDIT_FIELD_MAX] if name in made else text
    return made


def required(form: Form, name: str, what: str) -> str:
    """A field that must be filled in.

    Raises:
        OptionError: it is empty.
    """
    text = form.fields.get(name, "").strip()
    if not text:
        raise OptionError(f"{what} is missing")
    return text


def whole(values: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    """A whole number.

    Raises:
        OptionError: it is none, or out of range.
    """
    text = values.get(name, "").strip()
    if not text:
        return default
    if not (text.lstrip("-").isdigit() and text.isascii() and len(text) < 20):
        raise OptionError(f"{name}: {text[:40]!r} is no whole number")
    value = int(text)
    if not low <= value <= high:
        raise OptionError(f"{name}: {value} is outside {low} to {high}")
    return value
