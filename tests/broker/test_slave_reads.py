"""What a slave that may have to cut the end of its log answers: every code of the request table.

Such a slave was perhaps the master, and its log may end with messages that no other replica has.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest
from tests.broker.test_parted_logs import BOUND_S, SLAVE, copies, make

from oberth.broker import request_table
from oberth.broker.request_table import HELD_READS, SHOWS_LOG
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.code import RequestCode as Code
from oberth.remoting.code import ResponseCode
from oberth.remoting.command import RemotingCommand
from oberth.remoting.headers.base import field_types
from oberth.remoting.headers.table import HEADERS

IN_DOUBT: Final = "this slave does not know yet whether its log is its master's"

ANSWERED: Final = {
    "a slave appends nothing, and says so itself": (
        Code.SEND_MESSAGE,
        Code.SEND_MESSAGE_V2,
        Code.SEND_BATCH_MESSAGE,
        Code.SEND_REPLY_MESSAGE,
        Code.SEND_REPLY_MESSAGE_V2,
        Code.CONSUMER_SEND_MSG_BACK,
        Code.RECALL_MESSAGE,
        Code.END_TRANSACTION,
        Code.RESUME_CHECK_HALF_MESSAGE,
    ),
    "the requester has read already what it tells about": (
        Code.ACK_MESSAGE,
        Code.BATCH_ACK_MESSAGE,
        Code.CHANGE_MESSAGE_INVISIBLETIME,
        Code.UPDATE_CONSUMER_OFFSET,
    ),
    "tells of clients, not of messages": (
        Code.HEART_BEAT,
        Code.UNREGISTER_CLIENT,
        Code.CHECK_CLIENT_CONFIG,
        Code.GET_CONSUMER_LIST_BY_GROUP,
        Code.LOCK_BATCH_MQ,
        Code.UNLOCK_BATCH_MQ,
        Code.QUERY_ASSIGNMENT,
        Code.SET_MESSAGE_REQUEST_MODE,
        Code.GET_ALL_MESSAGE_REQUEST_MODE,
        Code.POLLING_INFO,
        Code.LITE_SUBSCRIPTION_CTL,
        Code.GET_LITE_CLIENT_INFO,
        Code.TRIGGER_LITE_DISPATCH,
        Code.GET_CONSUMER_CONNECTION_LIST,
        Code.GET_PRODUCER_CONNECTION_LIST,
        Code.GET_ALL_PRODUCER_INFO,
        Code.QUERY_SUBSCRIPTION_BY_CONSUMER,
        Code.GET_CONSUMER_RUNNING_INFO,
        Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    ),
    "tables of topics, groups, accounts and settings": (
        Code.UPDATE_AND_CREATE_TOPIC,
        Code.UPDATE_AND_CREATE_TOPIC_LIST,
        Code.UPDATE_AND_CREATE_STATIC_TOPIC,
        Code.DELETE_TOPIC_IN_BROKER,
        Code.GET_ALL_TOPIC_CONFIG,
        Code.GET_TOPIC_CONFIG,
        Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        Code.QUERY_TOPIC_CONSUME_BY_WHO,
        Code.QUERY_TOPICS_BY_CONSUMER,
        Code.CLEAN_UNUSED_TOPIC,
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        Code.GET_SUBSCRIPTIONGROUP_CONFIG,
        Code.UPDATE_AND_GET_GROUP_FORBIDDEN,
        Code.DELETE_SUBSCRIPTIONGROUP,
        Code.CLONE_GROUP_OFFSET,
        Code.UPDATE_BROKER_CONFIG,
        Code.GET_BROKER_CONFIG,
        Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
        Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
        Code.GET_COLD_DATA_FLOW_CTR_INFO,
        Code.SET_COMMITLOG_READ_MODE,
        Code.SWITCH_TIMER_ENGINE,
        Code.EXPORT_ROCKSDB_CONFIG_TO_JSON,
        Code.UPDATE_AND_CREATE_ACL_CONFIG,
        Code.DELETE_ACL_CONFIG,
        Code.GET_BROKER_CLUSTER_ACL_INFO,
        Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        Code.GET_BROKER_CLUSTER_ACL_CONFIG,
        *(code for code in Code if code.name.startswith("AUTH_")),
    ),
    "counts that are no offsets, for who looks after the broker": (
        Code.VIEW_BROKER_STATS_DATA,
        Code.GET_BROKER_LITE_INFO,
        Code.GET_PARENT_TOPIC_INFO,
        Code.CLEAN_EXPIRED_CONSUMEQUEUE,
        Code.DELETE_EXPIRED_COMMITLOG,
        Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS,
        Code.POP_ROLLBACK,
    ),
    "how replicas, and who looks after them, find out what differs": (
        Code.GET_BROKER_RUNTIME_INFO,
        Code.GET_BROKER_HA_STATUS,
        Code.GET_BROKER_EPOCH_CACHE,
        Code.EXCHANGE_BROKER_HA_INFO,
        Code.RESET_MASTER_FLUSH_OFFSET,
        Code.NOTIFY_MIN_BROKER_ID_CHANGE,
        Code.NOTIFY_BROKER_ROLE_CHANGED,
        Code.OBERTH_GET_LOG_CHECKSUMS,
    ),
}
"""Every other code, by the reason why a slave answers it at any time."""


def test_every_code_of_the_table_is_decided_once(tmp_path: Path) -> None:
    """A new one belongs into `SHOWS_LOG`, or into `ANSWERED` with its reason."""
    broker = make(tmp_path, None)
    served = [code for row in request_table.rows(broker.processors) for code in row.codes]
    decided = [*HELD_READS, *SHOWS_LOG, *(code for some in ANSWERED.values() for code in some)]
    assert sorted(decided) == sorted(served)


async def test_a_slave_in_doubt_shows_nothing_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await copies(tmp_path, only_slave=3)
    nowhere = {**SLAVE, "haMasterAddress": "127.0.0.1:1"}
    async with make(tmp_path / "slave", None, **nowhere) as slave, RemotingClient() as client:
        monkeypatch.setattr(slave.services.ha, "_now_s", lambda: 0.0)

        async def asked(code: Code) -> RemotingCommand:
            request = RemotingCommand(code=code, ext_fields=_fields(code))
            return await client.invoke(str(slave.address), request, BOUND_S)

        shows = sorted([*HELD_READS, *SHOWS_LOG])
        answers = dict(zip(shows, await asyncio.gather(*map(asked, shows)), strict=True))
        refused = {code: (int(ResponseCode.SERVICE_NOT_AVAILABLE), IN_DOUBT) for code in answers}
        assert {code: (each.code, each.remark) for code, each in answers.items()} == refused
        others = {code for some in ANSWERED.values() for code in some}
        others.remove(Code.END_TRANSACTION)  # nobody waits for an answer
        for answer in await asyncio.gather(*map(asked, others)):
            assert answer.remark != IN_DOUBT


def _fields(code: Code) -> dict[str, str]:
    """What a request must have to be read."""
    header = HEADERS.get(code, (None, None))[0]
    table = {} if header is None else field_types(header)
    texts: dict[type, str] = {int: "0", bool: "false", str: "T"}
    return {name: texts[kind] for name, (kind, is_required) in table.items() if is_required}
