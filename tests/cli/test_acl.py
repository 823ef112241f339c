"""``oberth acl``: users and policies of an embedded broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from oberth.cli.main import oberth
from oberth.testing.blocking import EmbeddedBroker

SECRET = "quite long a password"


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as made:
        yield made


def run(broker: EmbeddedBroker, words: str, code: int = 0, **more: Any) -> Result:
    result = CliRunner().invoke(oberth, [*words.split(), "-n", broker.namesrv_addr], **more)
    assert result.exit_code == code, (result.output, result.exception)
    assert SECRET not in result.output
    return result


def read(broker: EmbeddedBroker, words: str, code: int = 0) -> Any:
    return json.loads(run(broker, f"{words} --json", code).stdout)


def test_a_users_life(broker: EmbeddedBroker, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    (row,) = read(broker, f"acl user create anna --super --password-file {file}")
    assert (row["name"], row["outcome"]) == ("anna", "created")
    kept = json.loads((broker.store_dir / "config" / "authUsers.json").read_text())
    assert kept["users"][0]["password"] == SECRET
    (row,) = read(broker, f"acl user create anna --password-file {file}", code=1)
    assert row["outcome"] == "exists"
    run(broker, "acl user create ben --disabled", env={"OBERTH_NEW_PASSWORD": SECRET})
    run(broker, "acl user update ben --status enable")
    listed = {each["name"]: each for each in read(broker, "acl user list")}
    assert (listed["anna"]["type"], listed["ben"]["status"]) == ("Super", "enable")
    assert [each["name"] for each in read(broker, "acl user list --filter be")] == ["ben"]
    run(broker, "acl user update ben", code=2)
    run(broker, "acl user delete ben")
    (row,) = read(broker, "acl user delete ben", code=1)
    assert row["outcome"] == "none"
    none = run(broker, "acl user update ben --status enable", code=1)
    assert none.stderr == "user ben: no broker has it, nothing was updated\n"
    again = run(broker, f"acl user create anna --password-file {file}", code=1)
    assert again.stderr == "user anna: nothing was created\n"


def test_a_password_must_come_from_somewhere(broker: EmbeddedBroker) -> None:
    result = run(broker, "acl user create anna", code=1)
    assert "a password of 1 to" in str(result.exception)


def test_a_policys_life(broker: EmbeddedBroker) -> None:
    run(broker, "acl user create anna --password-file -", input=f"{SECRET}\n")
    run(broker, "acl policy update anna --resource Topic:T --action Sub", code=1)
    run(broker, "acl policy create anna --resource Topic:T* --action Pub --source 10.0.0.0/8")
    run(broker, "acl policy create anna --resource Group:G --action Sub --deny")
    found = {each["resource"]: each for each in read(broker, "acl policy list --user anna")}
    assert found["Topic:T*"]["actions"] == ["Pub"]
    assert found["Topic:T*"]["sources"] == ["10.0.0.0/8"]
    assert (found["Group:G"]["user"], found["Group:G"]["decision"]) == ("anna", "Deny")
    run(broker, "acl policy update anna --resource Group:G --action Get")
    (row,) = read(broker, "acl policy list --resource Group:G")
    assert (row["actions"], row["decision"]) == (["Get"], "Allow")
    none = run(broker, "acl policy delete anna --resource Group:Nowhere", code=1)
    assert none.stderr == "policy of anna: no broker has it, nothing was deleted\n"
    run(broker, "acl policy delete anna --resource Group:G")
    assert [each["resource"] for each in read(broker, "acl policy list")] == ["Topic:T*"]
    run(broker, "acl policy delete anna")
    run(broker, "acl policy delete anna", code=1)


def test_one_broker_by_its_name(broker: EmbeddedBroker) -> None:
    name = read(broker, "cluster list")[0]["broker"]
    assert read(broker, f"acl user list --broker {name}") == []
    result = run(broker, "acl user list --broker nowhere", code=1)
    assert "broker 'nowhere'" in str(result.exception)
