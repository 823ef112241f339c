"""AuthAdminProcessor: users and policies, 3001 to 3010. RocketMQ: AdminBrokerProcessor.

They are managed whether or not they are used, so that a broker can be prepared before its gate is
closed. A password leaves the broker only to a Super user who has signed for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from oberth.broker.acl.users import AccessDataError, UserStore
from oberth.remoting.bodies.admin import AclInfo, UserInfo
from oberth.remoting.code import RequestCode as Code
from oberth.remoting.code import ResponseCode
from oberth.remoting.command import RemotingCommand, create_response
from oberth.remoting.headers.admin import (
    CreateAclRequestHeader,
    CreateUserRequestHeader,
    DeleteAclRequestHeader,
    DeleteUserRequestHeader,
    GetAclRequestHeader,
    GetUserRequestHeader,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
)

if TYPE_CHECKING:
    from oberth.broker.acl.access_control import AccessControl
    from oberth.remoting.aio.channel import Channel
    from oberth.remoting.aio.stage import SyncHandler

_Answer = Callable[[RemotingCommand], bytes]


class AuthAdminProcessor:
    """Changes and shows users and policies."""

    def __init__(self, access: AccessControl) -> None:
        self._access = access
        self._users: Final[UserStore] = access.users

    def handlers(self) -> dict[Code, SyncHandler]:
        """What serves 3001 to 3010."""
        answers = (
            (Code.AUTH_CREATE_USER, self._create_user),
            (Code.AUTH_UPDATE_USER, self._update_user),
            (Code.AUTH_DELETE_USER, self._delete_user),
            (Code.AUTH_GET_USER, self._get_user),
            (Code.AUTH_LIST_USER, self._list_users),
            (Code.AUTH_CREATE_ACL, self._create_acl),
            (Code.AUTH_UPDATE_ACL, self._update_acl),
            (Code.AUTH_DELETE_ACL, self._delete_acl),
            (Code.AUTH_GET_ACL, self._get_acl),
            (Code.AUTH_LIST_ACL, self._list_acls),
        )
        return {code: _handler(answer) for code, answer in answers}

    def _create_user(self, request: RemotingCommand) -> bytes:
        self._users.create_user(_user_info(request))
        return b""

    def _update_user(self, request: RemotingCommand) -> bytes:
        self._users.update_user(_user_info(request))
        return b""

    def _delete_user(self, request: RemotingCommand) -> bytes:
        self._users.delete_user(request.header(DeleteUserRequestHeader).username or "")
        return b""

    def _get_user(self, request: RemotingCommand) -> bytes:
        user = self._users.users.get(request.header(GetUserRequestHeader).username or "")
        return b"" if user is None else user.to_info(with_password=self._shows_passwords).encode()

    def _list_users(self, request: RemotingCommand) -> bytes:
        users = self._users.list_users(request.header(ListUsersRequestHeader).filter)
        infos = [user.to_info(with_password=self._shows_passwords).encode() for user in users]
        return b"[%b]" % b",".join(infos) if infos else b""

    def _create_acl(self, request: RemotingCommand) -> bytes:
        self._users.create_acl(_acl_info(request))
        return b""

    def _update_acl(self, request: RemotingCommand) -> bytes:
        self._users.update_acl(_acl_info(request))
        return b""

    def _delete_acl(self, request: RemotingCommand) -> bytes:
        header = request.header(DeleteAclRequestHeader)
        self._users.delete_acl(header.subject, header.policy_type, header.resource)
        return b""

    def _get_acl(self, request: RemotingCommand) -> bytes:
        return self._users.find_acl(request.header(GetAclRequestHeader).subject).encode()

    def _list_acls(self, request: RemotingCommand) -> bytes:
        header = request.header(ListAclsRequestHeader)
        infos = self._users.list_acls(header.subject_filter, header.resource_filter)
        return b"[%b]" % b",".join(info.encode() for info in infos) if infos else b""

    @property
    def _shows_passwords(self) -> bool:
        # Behind the gate of users only Super users come this far. Without a gate anybody does, and
        # behind that of accounts also who comes from a white address and has signed nothing.
        return self._access.checks_users


def _handler(answer: _Answer) -> Callable[[Channel, RemotingCommand], RemotingCommand]:
    def handle(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        del channel
        try:
            body = answer(request)
        except AccessDataError as error:
            return create_response(request, ResponseCode.NO_PERMISSION, str(error))
        return create_response(request, ResponseCode.SUCCESS, body=body)

    return handle


def _user_info(request: RemotingCommand) -> UserInfo:
    info = UserInfo.decode(request.body_bytes() or b"{}")
    username = request.header(CreateUserRequestHeader).username
    if username:
        info.username = username
    return info


def _acl_info(request: RemotingCommand) -> AclInfo:
    info = AclInfo.decode(request.body_bytes() or b"{}")
    subject = request.header(CreateAclRequestHeader).subject
    if subject:
        info.subject = subject
    return info
