"""Proves how clients find the cluster: addresses, lists by HTTP, signatures, TLS, unique ids."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ssl
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from oberth.client import Message, Producer
from oberth.client.acl import SessionCredentials, signature
from oberth.client.config import ClientConfig, fast_address, split_addresses
from oberth.client.name_server_list import fetch_name_servers
from oberth.client.recall import broker_of_recall_handle
from oberth.client.unique_ids import UniqueIds, month_start_ms, next_month_start_ms
from oberth.errors import MQClientError, OptionError, RemotingError
from oberth.remoting.command import RemotingCommand
from oberth.testing.embedded_broker import EmbeddedBroker


def test_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "a:1; b:2;")
    assert split_addresses(ClientConfig().namesrv_addr) == ["a:1", "b:2"]
    monkeypatch.delenv("NAMESRV_ADDR")
    assert ClientConfig().namesrv_addr == "127.0.0.1:9876"
    assert fast_address("h:10911") == "h:10909"
    with pytest.raises(OptionError):
        ClientConfig(namesrv_addr="no-port")
    assert "secret" not in repr(ClientConfig(access_key="a", secret_key="secret"))


def test_signature() -> None:
    request = RemotingCommand(code=310, ext_fields={"b": "T", "a": "g"}, body=b"body")
    credentials = SessionCredentials("key", "secret")
    credentials.sign(request)
    credentials.sign(request)
    assert request.ext_fields is not None
    digest = hmac.new(b"secret", b"keygTbody", hashlib.sha1).digest()
    assert request.ext_fields["Signature"] == base64.b64encode(digest).decode()
    assert request.ext_fields["AccessKey"] == "key"
    bare = RemotingCommand(code=34, body=b"x")
    SessionCredentials("key", "secret", "token").sign(bare)
    assert bare.ext_fields is not None
    assert bare.ext_fields["SecurityToken"] == "token"
    assert (
        signature({"AccessKey": "key", "SecurityToken": "token"}, b"x", "secret")
        == (bare.ext_fields["Signature"])
    )


def test_unique_ids() -> None:
    ids = UniqueIds("10.0.0.9")
    now = 1_700_000_000_000
    made = [ids.next_id(now) for _ in range(1000)]
    assert len(set(made)) == 1000
    assert {len(each) for each in made} == {32}
    assert made[0].startswith("0A000009")
    assert month_start_ms(now) <= now < next_month_start_ms(month_start_ms(now))
    assert len(UniqueIds("fe80::1").next_id(now)) == 56


def test_recall_handles() -> None:
    handle = base64.urlsafe_b64encode(b"v1 T broker-a 5 ID").decode().rstrip("=")
    assert broker_of_recall_handle(handle) == "broker-a"
    for broken in ("", "!", base64.b64encode(b"v2 T b 5 I").decode()):
        with pytest.raises(MQClientError):
            broker_of_recall_handle(broken)


class _List(BaseHTTPRequestHandler):
    answer = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.answer)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        pass


async def test_the_list_of_name_servers_by_http(mq: EmbeddedBroker) -> None:
    with HTTPServer(("127.0.0.1", 0), _List) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/rocketmq/nsaddr"
        _List.answer = f"{mq.namesrv_addr};127.0.0.1:1\n".encode()
        found = await asyncio.to_thread(fetch_name_servers, url)
        assert found == [mq.namesrv_addr, "127.0.0.1:1"]
        config = ClientConfig(namesrv_addr="", namesrv_url=url)
        async with Producer("p", config=config) as producer:
            await producer.send(Message("T", b"x"))
        assert mq.bodies("T") == [b"x"]
        _List.answer = b"nonsense"
        with pytest.raises(MQClientError):
            await asyncio.to_thread(fetch_name_servers, url)
        server.shutdown()
        thread.join()
    with pytest.raises(MQClientError, match="http"):
        fetch_name_servers("file:///etc/passwd")


async def test_a_dead_name_server_is_passed_over(mq: EmbeddedBroker) -> None:
    for _ in range(4):  # who is asked first is left to chance
        async with Producer("p", namesrv_addr=f"127.0.0.1:1;{mq.namesrv_addr}") as producer:
            await producer.send(Message("T", b"x"))
    async with Producer("p", namesrv_addr="127.0.0.1:1") as producer:
        with pytest.raises(RemotingError):
            await producer.send(Message("T", b"x"))


async def test_tls(mq: EmbeddedBroker) -> None:
    pytest.importorskip("cryptography")
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    config = ClientConfig(namesrv_addr=mq.namesrv_addr, tls_context=context)
    async with Producer("p", config=config) as producer:
        await producer.send(Message("T", b"x"))
        server = mq.broker.server
        assert server is not None
        assert [channel.is_tls for channel in server.channels] == [True]
    assert mq.bodies("T") == [b"x"]
