"""PlainAclAdminProcessor: the accounts of 4.x over the wire, 50 to 54.

RocketMQ: AdminBrokerProcessor of 4.9.

The file that is changed is the one that the gate reads, never one that a request names. A secret
never leaves the broker: 54 shows accounts without it.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Final

from oberth.broker.acl.plain_acl_edit import AclChangeError, PlainAclDocument
from oberth.broker.config_file import ConfigFile
from oberth.errors import ConfigFormatError
from oberth.formats.config_json import encode_config
from oberth.remoting.code import ResponseCode
from oberth.remoting.command import RemotingCommand, create_response

if TYPE_CHECKING:
    from collections.abc import Callable

    from oberth.broker.acl.access_control import AccessControl
    from oberth.broker.broker_config import BrokerConfig
    from oberth.broker.own_address import OwnAddress
    from oberth.remoting.aio.channel import Channel
    from oberth.store.files import FileSystem

_LOG: Final = logging.getLogger(__name__)

UPDATE_FAILED: Final = 209
DELETE_FAILED: Final = 210
UPDATE_WHITE_FAILED: Final = 211
"""Response codes of 4.9, where 5.x has POLLING_FULL, POLLING_TIMEOUT and BROKER_NOT_EXIST."""

_NOT_IN_USE: Final = "aclEnable is false, there is no plain_acl.yml in use"
_TEXT_FIELDS: Final = ("secretKey", "whiteRemoteAddress", "defaultTopicPerm", "defaultGroupPerm")
_LIST_FIELDS: Final = ("topicPerms", "groupPerms")


class PlainAclAdminProcessor:
    """Changes and shows accounts."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        own: OwnAddress,
        access: AccessControl,
        files: FileSystem,
        now_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._own = own
        self._access = access
        self._now_ms = now_ms
        self._file = ConfigFile(access.path, files, private=True)

    def update_account(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """50: make an account, or change it."""
        given = request.fields
        access_key = given.get("accessKey") or ""
        fields: dict[str, str | list[str]] = {key: given.get(key) or "" for key in _TEXT_FIELDS}
        fields["admin"] = "true" if given.get("admin") == "true" else "false"
        for key in _LIST_FIELDS:
            fields[key] = [each.strip() for each in (given.get(key) or "").split(",") if each]
        try:
            document = self._read()
            document.set_account(access_key, fields)
            self._write(document)
        except (AclChangeError, ConfigFormatError, OSError) as error:
            return create_response(request, UPDATE_FAILED, str(error))
        _LOG.warning("%s made or changed the account %.80s", channel.remote, access_key)
        return create_response(request, ResponseCode.SUCCESS)

    def delete_account(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """51: take an account away."""
        access_key = request.fields.get("accessKey") or ""
        try:
            document = self._read()
            if not document.delete_account(access_key):
                return create_response(
                    request,
                    DELETE_FAILED,
                    f"The accesskey[{access_key}] corresponding to accessConfig has been deleted "
                    "failed.",
                )
            self._write(document)
        except (AclChangeError, ConfigFormatError, OSError) as error:
            return create_response(request, DELETE_FAILED, str(error))
        _LOG.warning("%s deleted the account %.80s", channel.remote, access_key)
        return create_response(request, ResponseCode.SUCCESS)

    def version(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """52: which state of the file the broker goes by."""
        del channel
        try:
            version = self._read().version.to_json()
        except (AclChangeError, ConfigFormatError, OSError) as error:
            return create_response(request, ResponseCode.SYSTEM_ERROR, str(error))
        return create_response(
            request,
            ResponseCode.SUCCESS,
            ext_fields={
                "version": json.dumps(version, separators=(",", ":")),
                "allAclFileVersion": json.dumps(
                    {str(self._file.path): version}, separators=(",", ":")
                ),
                "brokerName": self._config.broker_name,
                "brokerAddr": str(self._own.address),
                "clusterName": self._config.broker_cluster_name,
            },
        )

    def update_white_addresses(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """53: who may do everything without a signature."""
        given = request.fields.get("globalWhiteAddrs") or ""
        path = request.fields.get("aclFileFullPath")
        try:
            if path and path != str(self._file.path):
                raise AclChangeError(f"The file is {self._file.path}, no other is changed")
            document = self._read()
            document.set_global_white([each.strip() for each in given.split(",") if each.strip()])
            self._write(document)
        except (AclChangeError, ConfigFormatError, OSError) as error:
            return create_response(request, UPDATE_WHITE_FAILED, str(error))
        _LOG.warning("%s set the global white addresses to %.500s", channel.remote, given)
        return create_response(request, ResponseCode.SUCCESS)

    def accounts(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """54: accounts without their secrets, and white addresses."""
        del channel
        try:
            document = self._read()
        except (AclChangeError, ConfigFormatError, OSError) as error:
            return create_response(request, ResponseCode.SYSTEM_ERROR, str(error))
        shown: list[dict[str, Any]] = [
            {
                "accessKey": each.get("accessKey"),
                "whiteRemoteAddress": each.get("whiteRemoteAddress"),
                "admin": each.get("admin") == "true",
                "defaultTopicPerm": each.get("defaultTopicPerm"),
                "defaultGroupPerm": each.get("defaultGroupPerm"),
                "topicPerms": each.get("topicPerms"),
                "groupPerms": each.get("groupPerms"),
            }
            for each in document.accounts
        ]
        body = {"globalWhiteAddrs": document.global_white, "plainAccessConfigs": shown}
        return create_response(
            request, ResponseCode.SUCCESS, body=encode_config(body, pretty=False)
        )

    def _read(self) -> PlainAclDocument:
        if not self._config.acl_enable:
            raise AclChangeError(_NOT_IN_USE)
        path = self._file.path
        return PlainAclDocument(path.read_bytes(), str(path))

    def _write(self, document: PlainAclDocument) -> None:
        data, accounts = document.encode(self._now_ms())
        self._file.write(data, sync=True)
        self._access.accounts_changed(accounts)
