"""Access: users and policies of the brokers, as RocketMQ 5 keeps them, and changes to both."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from oberth.console.cluster import Part
from oberth.console.console import Asker, Console, Page, Write
from oberth.console.pages.overview import broker_key
from oberth.console.security import Form
from oberth.console.writes import Outcome, Plan, required
from oberth.errors import OberthError, OptionError
from oberth.remoting.bodies.admin import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo

SUBJECT: Final = "User:"
ACTIONS: Final = ("Pub", "Sub", "Create", "Update", "Delete", "Get", "List", "All")
PASSWORD_LENGTH_MAX: Final = 4096
ROWS_MAX: Final = 500


async def access(console: Console, request: Request) -> Response:
    """Users and policies, broker by broker."""
    state = await console.cluster.soon(Part.BROKERS)
    admin = console.admin_of(request)
    text = request.query_params.get("q", "").strip()
    users: list[tuple[str, UserInfo]] = []
    policies: list[tuple[str, str, str, PolicyEntryInfo]] = []
    problems: list[tuple[str, str]] = []
    for name, address in sorted(state.masters.items()):
        try:
            users += [(name, each) for each in await admin.users(address, text)]
            policies += [
                (name, (each.subject or "").removeprefix(SUBJECT), policy.policy_type or "", entry)
                for each in await admin.acls(address, SUBJECT + text if text else "")
                for policy in each.policies
                for entry in policy.entries
            ]
        except OberthError as error:
            problems.append((name, str(error).splitlines()[0]))
    return console.render(
        request,
        "access.html",
        users=users[:ROWS_MAX],
        policies=policies[:ROWS_MAX],
        problems=problems,
        left=max(len(users), len(policies)) - ROWS_MAX,
        text=text,
        masters=sorted(state.masters.items()),
        actions=ACTIONS,
    )


async def _brokers(asker: Asker, form: Form) -> list[tuple[str, str]]:
    """Every broker, slaves too: each keeps its own; or the one that is meant."""
    state = await asker.console.cluster.fresh()
    address = form.fields.get("address", "")
    keys = [broker_key(state, address)] if address else list(state.brokers)
    return [(key.name if key.is_master else f"{key.name} #{key.broker_id}", key.address)
            for key in keys]  # fmt: skip


def _user(form: Form) -> str:
    name = required(form, "user", "the user's name")
    if not name.isprintable() or len(name) > 255:
        raise OptionError("a user's name has 1 to 255 characters that can be seen")
    return name


def _info(form: Form) -> UserInfo:
    password = form.fields.get("password", "")
    if len(password) > PASSWORD_LENGTH_MAX:
        raise OptionError(f"a password of more than {PASSWORD_LENGTH_MAX} characters")
    kind, status = form.fields.get("type") or "Normal", form.fields.get("status") or "enable"
    if kind not in ("Normal", "Super") or status not in ("enable", "disable"):
        raise OptionError("a user is Normal or Super, and enable or disable")
    return UserInfo(
        username=_user(form), password=password or None, user_type=kind, user_status=status
    )


async def _known(asker: Asker, address: str, name: str) -> UserInfo | None:
    found = await asker.admin.users(address, name)
    return next((each for each in found if each.username == name), None)


async def _plan_save_user(asker: Asker, form: Form) -> Plan:
    info = _info(form)
    changes = []
    for label, address in await _brokers(asker, form):
        known = await _known(asker, address, info.username or "")
        if known is None and not info.password:
            raise OptionError(f"{label} does not know {info.username}: a password is needed")
        before = "–" if known is None else f"{known.user_type}, {known.user_status}"
        more = ", new password" if info.password else ""
        changes.append((label, before, f"{info.user_type}, {info.user_status}{more}"))
    return Plan(f"Save user {info.username}", "Save", changes, binding=repr(changes))


async def _save_user(asker: Asker, form: Form, plan: Plan) -> Outcome:
    info = _info(form)
    for _, address in await _brokers(asker, form):
        if await _known(asker, address, info.username or "") is None:
            await asker.admin.create_user(address, info)
        else:
            await asker.admin.update_user(address, info)
    return Outcome(f"User {info.username} is so now.", links=[("Access", "/access")])


async def _plan_delete_user(asker: Asker, form: Form) -> Plan:
    name = _user(form)
    changes = [(label, name, "–") for label, address in await _brokers(asker, form)
               if await _known(asker, address, name) is not None]  # fmt: skip
    if not changes:
        raise OptionError(f"no broker knows user {name}")
    warnings = ["Its policies go with it; who signs as this user is refused from then on."]
    return Plan(
        f"Delete user {name}", "Delete", changes, warnings, binding=repr(changes), is_dangerous=True
    )


async def _delete_user(asker: Asker, form: Form, plan: Plan) -> Outcome:
    name = _user(form)
    for _, address in await _brokers(asker, form):
        if await _known(asker, address, name) is not None:
            await asker.admin.delete_user(address, name)
    return Outcome(f"User {name} is deleted.", links=[("Access", "/access")])


def _policy(form: Form) -> AclInfo:
    actions = form.lists.get("action", [])
    if not actions or not set(actions) <= set(ACTIONS):
        raise OptionError(f"actions are of {', '.join(ACTIONS)}; at least one is needed")
    resource = required(form, "resource", "the resource")
    if resource != "*" and resource.partition(":")[0] not in ("Topic", "Group", "Cluster"):
        raise OptionError(f"{resource[:60]!r} is no resource: Topic:NAME, Group:NAME, Cluster:NAME")
    sources = form.fields.get("sources", "").split()
    entry = PolicyEntryInfo(
        resource=resource,
        actions=actions,
        decision="Deny" if form.fields.get("decision") == "Deny" else "Allow",
        source_ips=sources or None,
    )
    kind = "Default" if form.fields.get("policy") == "Default" else "Custom"
    return AclInfo(
        subject=SUBJECT + _user(form), policies=[PolicyInfo(policy_type=kind, entries=[entry])]
    )


async def _plan_save_policy(asker: Asker, form: Form) -> Plan:
    policy = _policy(form).policies[0]
    entry = policy.entries[0]
    resource, kind = entry.resource or "", policy.policy_type or ""
    then = _policy_text(kind, entry)
    changes = [(label, await _said_of(asker, address, _user(form), resource, kind), then)
               for label, address in await _brokers(asker, form)]  # fmt: skip
    warnings = ["What this policy said of the same resource is replaced."]
    return Plan(f"What {_user(form)} may do", "Save", changes, warnings, binding=repr(changes))


def _policy_text(kind: str, entry: PolicyEntryInfo) -> str:
    text = f"{kind}: {entry.decision} {', '.join(entry.actions)} on {entry.resource}"
    return text + (f" from {', '.join(entry.source_ips)}" if entry.source_ips else "")


async def _said_of(asker: Asker, address: str, user: str, resource: str, kind: str) -> str:
    """What a broker's policies of a kind, "" for all, say of a resource for a user."""
    found = await asker.admin.acls(address, SUBJECT + user)
    texts = [
        _policy_text(policy.policy_type or "", entry)
        for each in found
        if each.subject == SUBJECT + user
        for policy in each.policies
        if kind in ("", policy.policy_type)
        for entry in policy.entries
        if entry.resource == resource
    ]
    return "; ".join(sorted(texts)) or "–"


async def _save_policy(asker: Asker, form: Form, plan: Plan) -> Outcome:
    for _, address in await _brokers(asker, form):
        await asker.admin.create_acl(address, _policy(form))
    return Outcome(f"What {_user(form)} may do is changed.", links=[("Access", "/access")])


async def _plan_delete_policy(asker: Asker, form: Form) -> Plan:
    user, resource = _user(form), required(form, "resource", "the resource")
    kind = form.fields.get("policy", "")
    changes = [(label, await _said_of(asker, address, user, resource, kind), "–")
               for label, address in await _brokers(asker, form)]  # fmt: skip
    return Plan(
        f"Delete what is said of {resource} for {user}", "Delete", changes,
        binding=repr(changes), is_dangerous=True,
    )  # fmt: skip


async def _delete_policy(asker: Asker, form: Form, plan: Plan) -> Outcome:
    user, resource = _user(form), required(form, "resource", "the resource")
    for _, address in await _brokers(asker, form):
        await asker.admin.delete_acl(
            address, SUBJECT + user, resource=resource, policy_type=form.fields.get("policy", "")
        )
    return Outcome("It is deleted.", links=[("Access", "/access")])


ROUTES: Final[dict[str, Page]] = {"/access": access}
WRITES: Final[dict[str, Any]] = {
    "user.save": Write(_plan_save_user, _save_user),
    "user.delete": Write(_plan_delete_user, _delete_user),
    "policy.save": Write(_plan_save_policy, _save_policy),
    "policy.delete": Write(_plan_delete_policy, _delete_policy),
}
