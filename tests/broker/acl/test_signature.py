"""Signatures: HMAC-SHA1 as the standard library computes it, over the content that clients sign."""

from __future__ import annotations

import base64
import hmac

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oberth.broker.acl import signature as signature_module
from oberth.broker.acl.signature import ACCESS_KEY, SIGNATURE, SecretKey, content, is_signed
from oberth.client.acl import SessionCredentials, signature
from oberth.remoting.command import RemotingCommand


@settings(deadline=None)
@given(st.binary(max_size=200), st.binary(max_size=500))
def test_key_is_that_of_hmac(secret: bytes, signed: bytes) -> None:
    expected = base64.b64encode(hmac.digest(secret, signed, "sha1"))
    assert SecretKey(secret).sign(signed) == expected


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=12), st.binary())
def test_content_is_what_clients_sign(fields: dict[str, str], body: bytes) -> None:
    fields.pop(SIGNATURE, None)
    for _ in range(2):
        ours = SecretKey(b"a secret key").sign(content(fields, body)).decode()
        assert ours == signature(fields, body, "a secret key")


def test_many_kinds_of_headers_are_kept_in_bounds() -> None:
    for number in range(3000):
        assert content({f"b{number}": "2", "a": "1"}, b"3") == b"123"


@pytest.mark.parametrize(("count", "length"), [(41, 2), (40, 21), (2, 401)])
def test_kinds_of_long_headers_are_not_kept(count: int, length: int) -> None:
    """They come before anybody knows who sends them."""
    fields = {f"{number:0{length}}": "x" for number in range(count)}
    assert content(fields, b"") == b"x" * count
    assert tuple(fields) not in signature_module._PICKS
    short = {f"{number:02}": "x" for number in range(40)}
    assert content(short, b"") == b"x" * 40
    assert tuple(short) in signature_module._PICKS


@pytest.mark.parametrize("given_text", ["", "x", "\u00e9" * 28, "A" * 28])
def test_wrong_signatures(given_text: str) -> None:
    request = RemotingCommand(code=310, ext_fields={"b": "T"})
    SessionCredentials("producer", "a secret key").sign(request)
    assert is_signed(request, SecretKey(b"a secret key"))
    assert request.ext_fields is not None
    request.ext_fields[SIGNATURE] = given_text
    assert not is_signed(request, SecretKey(b"a secret key"))


def test_code_and_flags_are_not_signed() -> None:
    """What a signature proves, and what it does not: SECURITY.md says so."""
    key = SecretKey(b"secret")
    request = RemotingCommand(code=351, ext_fields={ACCESS_KEY: "a", "topic": "T"})
    assert request.ext_fields is not None
    request.ext_fields[SIGNATURE] = key.sign(content(request.fields, b"")).decode()
    assert is_signed(request, key)
    request.code, request.flag = 215, 2
    assert is_signed(request, key)
    request.ext_fields["topic"] = "U"
    assert not is_signed(request, key)
