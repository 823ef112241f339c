"""Admin: topics, groups, offsets, statistics, messages and configuration of a cluster.

    async with Admin(namesrv_addr="127.0.0.1:9876") as admin:
        await admin.create_topic("OrderTopic", queue_nums=8)

The same requests in the same order as RocketMQ's ``mqadmin`` sends (DefaultMQAdminExt). A call for
a whole cluster or topic asks every master of it; where one fails, the call fails, and what the
others did stays done.
"""

from __future__ import annotations

from oberth.client.admin.cluster import ClusterAdmin
from oberth.client.admin.groups import LATEST as LATEST
from oberth.client.admin.groups import GroupAdmin
from oberth.client.admin.groups import GroupProgress as GroupProgress
from oberth.client.admin.groups import QueueProgress as QueueProgress
from oberth.client.admin.messages import UNIQUE_KEY_QUERY as UNIQUE_KEY_QUERY
from oberth.client.admin.messages import MessageAdmin


class Admin(ClusterAdmin, GroupAdmin, MessageAdmin):
    """Administration.

    Args:
        namesrv_addr: shorthand for the same field of ``config``.
        config: how to reach the cluster.
        timeout_ms: of one request; slow ones have their own.
    """
