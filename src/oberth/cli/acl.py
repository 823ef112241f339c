"""``oberth acl``: users and policies of brokers that check them as RocketMQ 5.x does."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import click

from oberth.cli.connection import read_text
from oberth.cli.lazy import SuggestingGroup
from oberth.cli.output import say
from oberth.cli.remote import (
    UNCHANGED,
    ask,
    broker_address,
    cluster_option,
    json_option,
    namesrv_option,
    show,
    tell_silent,
)
from oberth.client.admin import Admin
from oberth.client.admin.base import Silent, ask_each
from oberth.errors import OptionError
from oberth.remoting.bodies.admin import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

PASSWORD_ENVIRONMENT: Final = "OBERTH_NEW_PASSWORD"
PASSWORD_SIZE_MAX: Final = 4096
SUBJECT: Final = "User:"
EXIT_NOTHING: Final = 1
OUTCOMES: Final = ["broker", "address", "name", "outcome"]

broker_option = click.option(
    "--broker", metavar="NAME|ADDRESS", help="Only this broker, and not all, slaves too."
)
password_option = click.option(
    "--password-file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help=f"The first line is the password; - is stdin. Or {PASSWORD_ENVIRONMENT}; a terminal asks.",
)
effect_options = (
    click.option("--resource", "resources", metavar="KIND:NAME", multiple=True, required=True,
                 help="Topic:NAME, Group:NAME, Cluster:NAME or *; NAME* is a prefix. Repeatable."),
    click.option("--action", "actions", multiple=True, required=True,
                 help="Pub, Sub, Create, Update, Delete, Get, List or All. Repeatable."),
    click.option("--deny", is_flag=True, help="Forbid the actions; without this they are allowed."),
    click.option("--source", "sources", metavar="ADDRESS", multiple=True,
                 help="Only from this address or network. Repeatable."),
    click.option("--default-policy", is_flag=True,
                 help="Into the Default policy, which decides after the Custom one."),
)  # fmt: skip


def _effect(command: F) -> F:
    for decorate in reversed(effect_options):
        command = decorate(command)
    return command


@click.group(cls=SuggestingGroup)
def acl() -> None:
    """Show and change users and policies, on Oberth's brokers and on Apache's from 5.3 on.

    Every broker has its own; a command asks all of them, or the one of --broker. Exit code 1 if
    one does not answer: what it has is not shown, and stays as it is.

    Example: oberth acl policy create anna --resource Topic:Orders --action Pub
    """


@acl.group(cls=SuggestingGroup)
def user() -> None:
    """Who may sign requests; passwords are keys of signatures and are never shown.

    Example: oberth acl user create anna --password-file anna.txt
    """


@acl.group(cls=SuggestingGroup)
def policy() -> None:
    """What users may do.

    Example: oberth acl policy list --user anna
    """


@user.command("list")
@click.option("--filter", "text", default="", help="Only names that hold this text.")
@broker_option
@namesrv_option
@cluster_option
@json_option
def list_users(
    text: str, broker: str | None, namesrv: str, cluster: str | None, as_json: bool
) -> None:
    """List users; exit code 1 if a broker does not answer."""
    silent: Silent = {}

    async def look(admin: Admin) -> list[list[Any]]:
        brokers = await _brokers(admin, broker, cluster)
        answers = await _answers(brokers, lambda address: admin.users(address, text), silent)
        return [
            [name, address, each.username, each.user_type, each.user_status]
            for name, address, users in answers
            for each in users
        ]

    show(
        as_json,
        ["broker", "address", "name", "type", "status"],
        ask(namesrv, look, names_broker=broker is not None),
    )
    tell_silent(silent)


@user.command("create")
@click.argument("name")
@password_option
@click.option("--super", "is_super", is_flag=True, help="The user may do everything.")
@click.option("--disabled", is_flag=True, help="The user may not sign requests yet.")
@broker_option
@namesrv_option
@cluster_option
@json_option
def create_user(
    name: str,
    password_file: str | None,
    is_super: bool,
    disabled: bool,
    broker: str | None,
    namesrv: str,
    cluster: str | None,
    as_json: bool,
) -> None:
    """Make a user; exit code 1 if every broker has one of this name, which stays as it is."""
    made = UserInfo(
        username=name,
        password=_password(password_file, required=True),
        user_type="Super" if is_super else "Normal",
        user_status="disable" if disabled else "enable",
    )

    async def one(admin: Admin, address: str) -> str:
        if await _has_user(admin, address, name):
            return "exists"
        await admin.create_user(address, made)
        return "created"

    _each(namesrv, broker, cluster, name, one, as_json=as_json, what="user", done="created")


@user.command("update")
@click.argument("name")
@password_option
@click.option(
    "--type", "user_type", type=click.Choice(["Super", "Normal"]), help="The user's new type."
)
@click.option("--status", type=click.Choice(["enable", "disable"]), help="Whether it may sign.")
@broker_option
@namesrv_option
@cluster_option
@json_option
def update_user(
    name: str,
    password_file: str | None,
    user_type: str | None,
    status: str | None,
    broker: str | None,
    namesrv: str,
    cluster: str | None,
    as_json: bool,
) -> None:
    """Change a user; options not given leave it as it is. Exit code 1 if no broker has it."""
    password = _password(password_file, required=False)
    if password is None and user_type is None and status is None:
        raise click.UsageError("one of --password-file, --type and --status is needed")
    made = UserInfo(username=name, password=password, user_type=user_type, user_status=status)

    async def one(admin: Admin, address: str) -> str:
        if not await _has_user(admin, address, name):
            return "none"
        await admin.update_user(address, made)
        return "updated"

    _each(namesrv, broker, cluster, name, one, as_json=as_json, what="user", done="updated")


@user.command("delete")
@click.argument("name")
@broker_option
@namesrv_option
@cluster_option
@json_option
def delete_user(
    name: str, broker: str | None, namesrv: str, cluster: str | None, as_json: bool
) -> None:
    """Delete a user and its policies; exit code 1 if no broker has it."""

    async def one(admin: Admin, address: str) -> str:
        if not await _has_user(admin, address, name):
            return "none"
        await admin.delete_user(address, name)
        return "deleted"

    _each(namesrv, broker, cluster, name, one, as_json=as_json, what="user", done="deleted")


@policy.command("list")
@click.option("--user", "name", default="", help="Only users whose name holds this text.")
@click.option("--resource", default="", help="Only resources that hold this text.")
@broker_option
@namesrv_option
@cluster_option
@json_option
def list_policies(
    name: str,
    resource: str,
    broker: str | None,
    namesrv: str,
    cluster: str | None,
    as_json: bool,
) -> None:
    """List policies, in the order in which they decide; exit code 1 if a broker does not answer."""
    silent: Silent = {}

    async def look(admin: Admin) -> list[list[Any]]:
        brokers = await _brokers(admin, broker, cluster)
        answers = await _answers(
            brokers, lambda address: admin.acls(address, name, resource), silent
        )
        return [
            [
                *(broker_name, address, _user_of(found), each.policy_type, entry.resource),
                *(entry.actions, entry.decision, entry.source_ips or []),
            ]
            for broker_name, address, subjects in answers
            for found in subjects
            for each in found.policies
            for entry in each.entries
        ]

    header = ["broker", "address", "user", "policy", "resource", "actions", "decision", "sources"]
    show(as_json, header, ask(namesrv, look, names_broker=broker is not None))
    tell_silent(silent)


@policy.command("create")
@click.argument("name", metavar="USER")
@_effect
@broker_option
@namesrv_option
@cluster_option
@json_option
def create_policy(
    name: str,
    broker: str | None,
    namesrv: str,
    cluster: str | None,
    as_json: bool,
    **effect: Any,
) -> None:
    """Allow or deny USER something; an earlier entry for the same resource is replaced.

    Example: oberth acl policy create anna --resource Topic:Orders --action Pub --action Sub
    """
    made = _acl(name, **effect)

    async def one(admin: Admin, address: str) -> str:
        await admin.create_acl(address, made)
        return "created"

    _each(namesrv, broker, cluster, name, one, as_json=as_json, what="policy of", done="created")


@policy.command("update")
@click.argument("name", metavar="USER")
@_effect
@broker_option
@namesrv_option
@cluster_option
@json_option
def update_policy(
    name: str,
    broker: str | None,
    namesrv: str,
    cluster: str | None,
    as_json: bool,
    **effect: Any,
) -> None:
    """Change what USER may do; exit code 1 if no broker says anything of USER."""
    made = _acl(name, **effect)

    async def one(admin: Admin, address: str) -> str:
        if not await _has_policy(admin, address, name):
            return "none"
        await admin.update_acl(address, made)
        return "updated"

    _each(namesrv, broker, cluster, name, one, as_json=as_json, what="policy of", done="updated")


@policy.command("delete")
@click.argument("name", metavar="USER")
@click.option("--resource", default="", help="Only the entry for exactly this resource.")
@click.option("--type", "policy_type", type=click.Choice(["Custom", "Default"]),
              help="Only of this policy.")  # fmt: skip
@broker_option
@namesrv_option
@cluster_option
@json_option
def delete_policy(
    name: str,
    resource: str,
    policy_type: str | None,
    broker: str | None,
    namesrv: str,
    cluster: str | None,
    as_json: bool,
) -> None:
    """Delete what USER may do, all unless --resource or --type; exit code 1 if there is nothing."""

    async def one(admin: Admin, address: str) -> str:
        if not await _has_policy(admin, address, name, resource, policy_type or ""):
            return "none"
        await admin.delete_acl(
            address, SUBJECT + name, resource=resource, policy_type=policy_type or ""
        )
        return "deleted"

    _each(namesrv, broker, cluster, name, one, as_json=as_json, what="policy of", done="deleted")


def _each(
    namesrv: str,
    broker: str | None,
    cluster: str | None,
    name: str,
    change: Callable[[Admin, str], Awaitable[str]],
    *,
    as_json: bool,
    what: str,
    done: str,
) -> None:
    """Change every broker and show what came of it; what one refuses does not undo the rest."""
    silent: Silent = {}

    async def work(admin: Admin) -> list[list[Any]]:
        brokers = await _brokers(admin, broker, cluster)
        answers = await _answers(brokers, lambda address: change(admin, address), silent)
        return [[broker_name, address, name, came] for broker_name, address, came in answers]

    rows = ask(namesrv, work, names_broker=broker is not None)
    show(as_json, OUTCOMES, rows)
    tell_silent(silent, UNCHANGED)
    if all(row[-1] != done for row in rows):
        none = "no broker has it, " if all(row[-1] == "none" for row in rows) else ""
        say(f"{what} {name}: {none}nothing was {done}")
        sys.exit(EXIT_NOTHING)


async def _answers(
    brokers: list[tuple[str, str]], question: Callable[[str], Awaitable[T]], silent: Silent
) -> list[tuple[str, str, T]]:
    """What brokers answer, by name and address; those that do not are put into ``silent``."""
    addresses = {address: address for _, address in brokers}
    hung: Silent = {}
    found = await ask_each(addresses, lambda _, address: question(address), hung)
    silent.update({f"{name} {at}": hung[at] for name, at in brokers if at in hung})
    return [(name, at, found[at]) for name, at in brokers if at in found]


async def _brokers(admin: Admin, broker: str | None, cluster: str | None) -> list[tuple[str, str]]:
    """Names and addresses of the brokers, slaves too, that are meant."""
    info = await admin.cluster_info()
    masters = await admin.masters(cluster)  # says which clusters there are
    found = [
        (name, address)
        for name, data in sorted(info.broker_addr_table.items())
        for _, address in sorted(data.broker_addrs.items())
        if cluster is None or name in masters or data.cluster == cluster
    ]
    if broker is None:
        return found
    wanted = await broker_address(admin, broker)
    return [each for each in found if each[1] == wanted] or [(broker, wanted)]


async def _has_user(admin: Admin, address: str, name: str) -> bool:
    return any(each.username == name for each in await admin.users(address, name))


async def _has_policy(
    admin: Admin, address: str, name: str, resource: str = "", policy_type: str = ""
) -> bool:
    return any(
        (not resource or entry.resource == resource)
        and (not policy_type or each.policy_type == policy_type)
        for found in await admin.acls(address, SUBJECT + name, resource)
        if _user_of(found) == name
        for each in found.policies
        for entry in each.entries
    )


def _user_of(found: AclInfo) -> str:
    return (found.subject or "").removeprefix(SUBJECT)


def _acl(
    name: str,
    *,
    resources: tuple[str, ...],
    actions: tuple[str, ...],
    deny: bool,
    sources: tuple[str, ...],
    default_policy: bool,
) -> AclInfo:
    entries = [
        PolicyEntryInfo(
            resource=resource,
            actions=list(actions),
            decision="Deny" if deny else "Allow",
            source_ips=list(sources) or None,
        )
        for resource in resources
    ]
    kind = "Default" if default_policy else "Custom"
    return AclInfo(subject=SUBJECT + name, policies=[PolicyInfo(policy_type=kind, entries=entries)])


def _password(path: str | None, *, required: bool) -> str | None:
    """The password, from a file, the environment or the terminal.

    Raises:
        OptionError: no password was given, it is too long, or no text.
    """
    if path is not None:
        text = read_text(path).partition("\n")[0].rstrip("\r")
    else:
        text = os.environ.get(PASSWORD_ENVIRONMENT, "")
        if not text and not required:
            return None
        if not text and sys.stdin.isatty():
            text = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    if not text or len(text) > PASSWORD_SIZE_MAX:
        raise OptionError(
            f"a password of 1 to {PASSWORD_SIZE_MAX} characters is needed: "
            f"--password-file FILE, or {PASSWORD_ENVIRONMENT}"
        )
    return str(text)
