"""Whatever holds a secret is for its owner alone, at every moment and whoever made it before."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.broker.conftest import SMALL, Peer

from oberth.broker.broker import Broker
from oberth.broker.broker_config import read_configs
from oberth.client.acl import SessionCredentials
from oberth.remoting.bodies.admin import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from oberth.remoting.command import RemotingCommand
from oberth.testing.fault_disk import FaultDisk

SECRET = "very-secret-9d1f"
ACCOUNTS = f"""
accounts:
- accessKey: administrator
  secretKey: {SECRET}
  admin: true
"""


class Watched(FaultDisk):
    """Looks at all permissions before every event."""

    root: Path

    def __init__(self, root: Path) -> None:
        FaultDisk.__init__(self)
        self.root = root
        self.seen: set[str] = set()

    def event(self, what: str) -> None:
        """See FaultDisk."""
        check(self.root, self.seen)
        FaultDisk.event(self, what)


def check(root: Path, seen: set[str]) -> None:
    """No file below holds the secret and may be read by others."""
    for path in root.rglob("*"):
        if path.is_file() and path.stat().st_size < 1 << 20 and SECRET in path.read_text("latin-1"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
            seen.add(path.name)


def make_readable(*paths: Path) -> None:
    """Files as somebody without a thought leaves them."""
    for path in paths:
        for each in (path, path.with_name(path.name + ".bak"), path.with_name(path.name + ".tmp")):
            each.parent.mkdir(parents=True, exist_ok=True)
            if not each.exists():
                each.write_bytes(b"")
            each.chmod(0o666)


@pytest.fixture(autouse=True)
def no_umask() -> Any:
    before = os.umask(0)
    yield
    os.umask(before)


async def _users(broker: Broker, peer: Peer) -> None:
    users = broker.services.access.users
    for name in ("a", "b"):
        users.create_user(UserInfo(username=name, password=SECRET, user_type="Normal"))
    entry = PolicyEntryInfo(resource="Topic:T", actions=["Pub"], decision="Allow")
    users.create_acl(AclInfo(subject="User:a", policies=[PolicyInfo(entries=[entry])]))
    users.delete_user("b")


async def _plain_acl(broker: Broker, peer: Peer) -> None:
    who = SessionCredentials("administrator", SECRET)
    for code, fields in (
        (50, {"accessKey": "newcomer", "secretKey": SECRET + "2"}),
        (53, {"globalWhiteAddrs": "10.0.0.1"}),
        (51, {"accessKey": "newcomer"}),
    ):
        request = RemotingCommand(code=code, ext_fields=dict(fields))
        who.sign(request)
        assert (await peer.client.invoke(peer.address, request, 100.0)).code == 0


async def _broker_conf(broker: Broker, peer: Peer) -> None:
    for permission in ("4", "6"):
        broker.services.changes.update({"brokerPermission": permission})


@pytest.mark.parametrize(
    ("write", "settings", "names"),
    [
        (_users, {}, {"authUsers.json", "authUsers.json.bak", "authUsers.json.tmp"}),
        (_plain_acl, {"aclEnable": "true"}, {"plain_acl.yml", "plain_acl.yml.bak"}),
        (_broker_conf, {}, {"broker.conf", "broker.conf.bak"}),
    ],
)
async def test_every_writer_keeps_secrets(
    tmp_path: Path,
    write: Callable[[Broker, Peer], Any],
    settings: dict[str, str],
    names: set[str],
) -> None:
    root = tmp_path / "store"
    config, conf = root / "config", tmp_path / "broker.conf"
    make_readable(config / "authUsers.json", config / "authAcls.json", config / "plain_acl.yml")
    make_readable(conf)
    (config / "plain_acl.yml").write_text(ACCOUNTS)
    credentials = f'{{"accessKey":"x","secretKey":"{SECRET}"}}'
    if write is _broker_conf:
        conf.write_text(f"innerClientAuthenticationCredentials={credentials}\n")
    (config / "plain_acl.yml").chmod(0o600 if write is not _plain_acl else 0o644)
    disk = Watched(tmp_path / "none")  # what was there at the start is not ours yet
    given = {**SMALL, **settings, "storePathRootDir": str(root)}
    broker_config, store_config, _ = read_configs(given)
    broker_config.broker_config_path = str(conf)
    async with Broker(broker_config, store_config, files=disk) as broker:
        peer = Peer(broker)
        if write is not _plain_acl:
            disk.root = root
        await write(broker, peer)
        seen: set[str] = set(disk.seen)
        check(tmp_path, seen)
        await peer.client.aclose()
        disk.root = root
    assert names <= seen
