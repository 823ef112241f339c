"""Access control as the official Java client and mqadmin meet it: accounts of 4.x, users of 5.x.

The client signs with its own AclClientRPCHook, the tool with conf/tools.yml. Right and wrong
secrets, topics and groups that are not granted, and commands that need an administrator.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.rigs import peers
from tests.rigs.clusters import cluster_for
from tests.rigs.interop import client_classes, stream_json

from oberth.errors import PeerUnavailableError

pytestmark = [pytest.mark.interop, pytest.mark.slow]

ACCOUNTS = """
accounts:
- accessKey: administrator
  secretKey: administrator-secret
  admin: true
- accessKey: the-sender
  secretKey: sender-secret
  topicPerms:
  - AclTopic=PUB
- accessKey: the-reader
  secretKey: reader-secret
  topicPerms:
  - AclTopic=SUB
  groupPerms:
  - AclGroup=SUB
"""
ROOT_USER = '{"username":"administrator","password":"administrator-secret"}'

REFUSED = "16"
"""NO_PERMISSION, in an exception of the broker or, for some of the tool's calls, of the client."""
GRANTED = "no error"

EXPECTED = {
    "send": GRANTED,
    "send: other topic": REFUSED,
    "send: wrong secret": REFUSED,
    "send: unknown name": REFUSED,
    "send: unsigned": REFUSED,
    "send: who may only read": REFUSED,
    "pull": GRANTED,
    "pull: other topic": REFUSED,
    "pull: other group": REFUSED,
    "pull: who may only send": REFUSED,
    "pull: wrong secret": REFUSED,
    "push": GRANTED,
    "administration: topic": REFUSED,
    "administration: wrong secret": REFUSED,
    "administration: by an administrator": GRANTED,
    "administration: configuration": REFUSED,
    "administration: group": REFUSED,
}
MEANWHILE = {"send: denied meanwhile": REFUSED, "pull: disabled meanwhile": REFUSED}


@pytest.mark.parametrize(
    ("kind", "client"),
    [("plain", "5.5.0"), ("plain", "4.9.8"), ("users", "5.5.0")],
)
def test_access_control(tmp_path: Path, kind: str, client: str) -> None:
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    conf = (
        {"aclEnable": "true", "aclFile": str(accounts)}
        if kind == "plain"
        else {
            "authenticationEnabled": "true",
            "authorizationEnabled": "true",
            "initAuthenticationUser": ROOT_USER,
        }
    )
    tool_home = tmp_path / "tool"
    (tool_home / "conf").mkdir(parents=True)
    (tool_home / "conf" / "tools.yml").write_text(
        "accessKey: administrator\nsecretKey: administrator-secret\n"
    )
    (tool_home / "conf" / "logback_tools.xml").write_text("<configuration/>")
    try:
        lib, classes = client_classes(client)
        cluster = cluster_for("oberth", tmp_path / "cluster", conf)
    except PeerUnavailableError as why:
        pytest.skip(str(why))
    with cluster:
        command = peers.java_command(
            lib,
            "AclSuite",
            *(f"namesrv={cluster.namesrv_addr}", f"kind={kind}"),
            classes=classes,
            options=(f"-Duser.home={tool_home}", "-Xmx256m"),
        )
        lines = list(
            stream_json(
                command, tool_home, timeout_s=300, environment={"ROCKETMQ_HOME": str(tool_home)}
            )
        )
    found = {line["scenario"]: line["detail"] for line in lines}
    tool = {name: text for name, text in found.items() if name.startswith("tool: ")}
    steps = {
        name: code.removeprefix("broker ").removeprefix("client ")
        for name, code in found.items()
        if name not in tool
    }
    assert steps == EXPECTED | (MEANWHILE if kind == "users" else {})
    assert len(tool) == (11 if kind == "users" else 5)
    for name, text in tool.items():
        assert "Exception" not in text, (name, text)
