"""Replication of a broker under a controller: epochs, a sync set, logs that are cut to join on.

The role is fixed for one life of the broker; `controlled_broker` begins another life when the
controller decides otherwise. A master begins its epoch before it takes messages, and acknowledges
what every member of its `SyncSet` has, where ``allAckInSyncStateSet`` or ``inSyncReplicas`` ask for
more than one copy: any of them may be elected. A slave asks its master where the HA port is (906),
says who it is, and goes on from where both logs were written by the same masters; what it has
beyond that it asks to be cut off. RocketMQ: AutoSwitchHAService, AutoSwitchHAClient.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from oberth.broker.ha_connection import Replica
from oberth.broker.ha_service import REQUEST_TIMEOUT_S, TOLD_WITHIN_S, Finish, HAService
from oberth.broker.role import ChangeRefusedError, Role
from oberth.broker.sync_set import SyncSet
from oberth.errors import ConfigFormatError, OberthError, RemoteProtocolError, RemotingError
from oberth.formats.epochs import FILE_NAME, Epoch, EpochTable, encode_epochs, parse_epochs
from oberth.remoting.bodies.controller import SyncStateSet
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import create_request, create_response
from oberth.remoting.headers.replication import ExchangeHAInfoResponseHeader
from oberth.store.epoch_replication import (
    SLAVE_REPORT,
    TRANSFER,
    EpochLogSender,
    EpochPiece,
    EpochStream,
    MasterHello,
    SlaveHello,
    SlaveReceiver,
)
from oberth.store.messages import PutMessageStatus
from oberth.store.replication import Done, LogPiece, LogSender, LogStream, ReplicaTable, join_pieces

if TYPE_CHECKING:
    from oberth.formats.message_store_config import MessageStoreConfig
    from oberth.remoting.aio.channel import Channel
    from oberth.remoting.command import RemotingCommand
    from oberth.store.files import FileSystem

_LOG: Final = logging.getLogger(__name__)

RECONNECT_S: Final = 0.3
ASK_AGAIN_MS: Final = 500
"""Between two questions for another sync set."""
SETTLE_MAX_S: Final = 1.0
"""How long a master that stops waits for the replicas to have what it took."""


class SyncSetTable(ReplicaTable):
    """Who waits for the members of a sync set.

    Args:
        sync_set: whose members count.
        end: gives the end of the master's log.
        now_ms: gives the time of the loop.
    """

    def __init__(
        self, sync_set: SyncSet, end: Callable[[], int], now_ms: Callable[[], int]
    ) -> None:
        super().__init__(0)
        self._sync_set = sync_set
        self._end = end
        self._now_ms = now_ms
        self.hellos: dict[Hashable, SlaveHello] = {}

    def in_sync_count(self, max_offset: int) -> int:
        """Members, the master included."""
        del max_offset
        return len(self._sync_set.members)

    def on_report(self, replica: Hashable, offset: int) -> list[tuple[Done, PutMessageStatus]]:
        """A slave has reported; returns whom that satisfies."""
        hello = self.hellos[replica]
        self._sync_set.on_report(
            hello.broker_id, replica, offset, self._end(), self._now_ms(),
            may_join=not hello.is_learner,
        )  # fmt: skip
        return super().on_report(replica, offset)

    def on_close(self, replica: Hashable) -> None:
        """A slave is gone."""
        hello = self.hellos.pop(replica, None)
        if hello is not None:
            self._sync_set.on_close(hello.broker_id, replica)
        super().on_close(replica)

    def has(self, end_offset: int, replicas: int) -> bool:
        """Whether all members reach an offset, and so many slaves among them."""
        found = self._sync_set
        return found.has(end_offset) and found.copies(end_offset) > replicas

    def satisfied(self) -> list[tuple[Done, PutMessageStatus]]:
        """Those who wait no more, after the set has changed."""
        return self._satisfied(self._sync_set.low_ack)

    def on_end(self) -> list[tuple[Done, PutMessageStatus]]:
        """Everybody who waits: this master is one no more."""
        return self.expire(float("inf"))


class ControlledHAService(HAService):
    """The replication of one broker in one role. Also a FileKeeper: it keeps the epochs.

    Args:
        role: what the broker is.
        files: where the epochs are kept.
        root: the store's directory.
        given: see HAService.
    """

    def __init__(self, *, role: Role, files: FileSystem, root: str, **given: Any) -> None:
        super().__init__(**given)
        self._role = role
        self._files = files
        self._path = _epochs_path(self._store_config, root)
        self.epochs = EpochTable()
        self.is_slave = not role.is_master
        self.may_be_cut = True
        self._confirmed = 0
        self._ask_at_ms = 0
        self._has_given_up = False
        self._is_settling = False
        self._has_joined = False
        self._said = ""
        self.sync_set: SyncSet | None = None
        if role.is_master:
            self.sync_set = SyncSet(
                role.broker_id,
                role.in_sync,
                role.in_sync_epoch,
                lag_max_ms=self._store_config.ha_max_time_slave_not_catchup_ms,
                now_ms=_loop_ms(),
            )
            self._table = SyncSetTable(self.sync_set, lambda: self._store.max_phy_offset, _loop_ms)
            self.replicas = self._table
        else:
            self.master_address = role.master_address
            # Before the store is opened: what lies behind the last confirmed offset on the disk
            # may be cut off when this slave joins, and nobody reads it until then.
            self._store.confirmed_by_replicas = self.confirm_offset

    # Files

    def load(self) -> None:
        """Read the epochs, and begin one's own as a master. In a thread, may block.

        Raises:
            ConfigFormatError: the file is damaged.
            OSError: it cannot be written.
        """
        store = self._store
        data = self._files.read_file(self._path)
        if data is not None:
            try:
                self.epochs = parse_epochs(data, name=self._path)
            except ConfigFormatError as error:
                raise ConfigFormatError(
                    f"{error}; 'oberth store rejoin' takes the master's. Where no other replica "
                    "can be the master remove the file: the log counts as this broker's then, and "
                    "the others have to rejoin"
                ) from None
        end = store.max_phy_offset
        changed = self.epochs.cut(end)
        if self._role.is_master:
            last = self.epochs.last
            # A master that was killed and is back before another was elected goes on in its epoch.
            if last is None or last.number != self._role.epoch:
                # What was there before there was a controller counts as the first master's.
                start = store.min_phy_offset if last is None else end
                changed |= self.epochs.append(Epoch(self._role.epoch, start))
            store.waits_for_replicas = True
            store.lacks_replicas = self.refuses_puts
            version = self._topics.data_version
            if version.state_version < self._role.epoch:
                # Name servers believe the newer of two that call themselves the master.
                self._topics.data_version = version.next(self._now_ms(), self._role.epoch)
        if changed:
            self._save()
        if self.is_slave:
            # Queues and index never held what was not confirmed.
            self._confirmed = store.dispatched_offset
        else:
            store.confirmed_by_replicas = self._shown_offset

    def close(self) -> None:
        """Nothing: epochs are on the disk when they begin."""

    def _save(self) -> None:
        self._files.write_file(self._path, encode_epochs(self.epochs))

    # The master's side

    @property
    def _is_waiting(self) -> bool:
        """Whether an acknowledgement waits for the sync set."""
        return self._role.is_master and self._acknowledges_copies

    @property
    def _acknowledges_copies(self) -> bool:
        """Whether a master with these settings acknowledges what other replicas have, too."""
        config = self._store_config
        return config.all_ack_in_sync_state_set or config.in_sync_replicas > 1

    def confirm_offset(self) -> int:
        """Up to where all replicas in sync have the log, as far as this one knows."""
        if self.sync_set is not None:
            return self.sync_set.confirm_offset(self._store.max_phy_offset)
        return self._confirmed

    def _shown_offset(self) -> int:
        """Up to where a master shows its log: as far as it acknowledges it."""
        return self.confirm_offset() if self._is_waiting else self._store.max_phy_offset

    def needed_acks(self) -> int:
        """How many slaves must have a message, beside every member of the sync set.

        At least as many as a put must find in sync: a member may leave between the put and its
        answer.
        """
        config = self._store_config
        return max(config.in_sync_replicas, config.min_in_sync_replicas, 1) - 1

    def refuses_puts(self) -> bool:
        """Whether no put is taken: too few replicas are in sync, or this broker stops."""
        return self._lacks_members or self._is_settling

    @property
    def _lacks_members(self) -> bool:
        assert self.sync_set is not None
        return len(self.sync_set.members) < self._store_config.min_in_sync_replicas

    def when_replicated(self, end_offset: int, flushed: PutMessageStatus, finish: Finish) -> None:
        """Calls ``finish`` once every replica in sync has the log so far, or time is up."""
        needed = self.needed_acks()
        if not self._is_waiting or self._table.has(end_offset, needed):
            finish(flushed)
            return

        def done(status: PutMessageStatus) -> None:
            finish(flushed if status is PutMessageStatus.PUT_OK else status)

        deadline = asyncio.get_running_loop().time() + self._store_config.slave_timeout_ms / 1000
        self._table.wait(end_offset, needed, deadline, done)

    def answer_behind_log(
        self, channel: Channel, request: RemotingCommand, response: RemotingCommand
    ) -> RemotingCommand | None:
        """See HAService. Refused if not all that may be elected have the log soon."""
        if not self._is_waiting:
            return super().answer_behind_log(channel, request, response)
        end = self._store.appended_offset
        if self._table.has(end, 0):
            return response
        if not self._keep(response):
            late = PutMessageStatus.FLUSH_SLAVE_TIMEOUT
            return create_response(request, ResponseCode.SYSTEM_ERROR, late.name)

        def done(status: PutMessageStatus) -> None:
            self._kept(response)
            refused = create_response(request, ResponseCode.SYSTEM_ERROR, status.name)
            channel.reply(request, response if status is PutMessageStatus.PUT_OK else refused)

        deadline = asyncio.get_running_loop().time() + TOLD_WITHIN_S
        self._table.wait(end, 0, deadline, done)
        return None

    def _may_take_over(self, replica: Replica) -> bool:
        """See HAService: not who reads the log only, as comparisons do."""
        hello = self._table.hellos.get(replica)
        return hello is None or not hello.is_learner

    async def settle(self) -> None:
        """Takes no more messages, and waits a moment until the replicas have those it took.

        Else each send at work would be answered FLUSH_SLAVE_TIMEOUT when this broker stops.
        """
        if not self._is_waiting:
            return
        self._is_settling = True
        if self._lacks_members:
            return
        settled = asyncio.get_running_loop().create_future()
        self.when_replicated(
            self._store.appended_offset, PutMessageStatus.PUT_OK, settled.set_result
        )
        await asyncio.wait([settled], timeout=SETTLE_MAX_S)

    def give_up(self) -> None:
        """This broker stays master no longer: who waits for replicas hears that at once.

        It no longer changes the set of replicas in sync. Their connections end with this life, and
        if they left the set for that, none of them could be elected.
        """
        self._has_given_up = True
        if self.sync_set is not None:
            for done, status in self._table.on_end():
                done(status)

    def set_known(self, members: Iterable[int], epoch: int) -> None:
        """The controller has said who is in sync."""
        if self.sync_set is not None:
            self.sync_set.known(members, epoch, _loop_ms())
            self._set_changed()

    def runtime_info(self) -> dict[str, str]:
        """What GET_BROKER_RUNTIME_INFO shows beside Apache's figures."""
        role = self._role
        shown = {
            "controlledRole": "master" if role.is_master else "slave",
            "controlledId": str(role.broker_id),
            "masterEpoch": str(role.epoch),
            "masterAddress": "" if role.is_master else self.master_address or "",
            "replicasConfirmed": str(self.confirm_offset()),
        }
        if self.sync_set is not None:
            shown["replicasInSync"] = " ".join(map(str, sorted(self.sync_set.members)))
        return shown

    def epochs_body(self) -> dict[str, Any]:
        """What GET_BROKER_EPOCH_CACHE shows. RocketMQ: EpochEntryCache."""
        end = self._store.max_phy_offset
        entries = self.epochs.entries
        ends = [*(each.start for each in entries[1:]), end]
        return {
            "brokerId": self._role.broker_id,
            "brokerName": self._config.broker_name,
            "clusterName": self._config.broker_cluster_name,
            "epochList": [
                {"endOffset": upto, "epoch": each.number, "startOffset": each.start}
                for each, upto in zip(entries, ends, strict=False)
            ],
            "maxOffset": end,
        }

    def look_soon(self) -> None:
        """Somebody says that the controller has chosen another master."""
        self._role.keeper.look_soon()

    def to_body(self) -> dict[str, Any]:
        """What GET_BROKER_HA_STATUS shows."""
        body = super().to_body()
        if self.sync_set is not None:
            members = {
                str(replica.address)
                for replica, hello in self._table.hellos.items()
                if isinstance(replica, Replica) and hello.broker_id in self.sync_set.members
            }
            for each in body["haConnectionInfo"]:
                each["inSync"] = each["addr"] in members
            body["inSyncSlaveNums"] = len(self.sync_set.members) - 1
        return body

    def on_time(self, now_ms: int) -> None:
        """Look after who waits and who is in sync."""
        super().on_time(now_ms)
        self._review()

    def _make_sender(self) -> LogSender:
        config = self._store_config
        return EpochLogSender(
            self._store.commit_log,
            config.ha_transfer_batch_size,
            from_last_file=config.sync_from_last_file,
            epochs=self.epochs,
            confirm_offset=self.confirm_offset,
        )

    def _make_receiver(self, replica: Replica) -> Callable[[bytes | memoryview], int | None]:
        def on_hello(hello: SlaveHello) -> None:
            self._refuse_hello(replica, hello)
            assert isinstance(replica.sender, EpochLogSender)
            replica.sender.greeted(from_last_file=hello.from_last_file)
            self._table.hellos[replica] = hello
            if not hello.is_learner:
                self._end_older(replica, hello.broker_id)
            replica.out.write(MasterHello(self._store.max_phy_offset, self.epochs).encode())

        receive_data = SlaveReceiver(on_hello).receive_data

        def receive(data: bytes | memoryview) -> int | None:
            offset = receive_data(data)
            if offset is not None:
                # The set is looked at when the report has been believed.
                asyncio.get_running_loop().call_soon(self._set_changed)
            return offset

        return receive

    def _refuse_hello(self, replica: Replica, hello: SlaveHello) -> None:
        """Raises RemoteProtocolError for a handshake that no slave sends."""
        if hello.broker_id == self._role.broker_id:
            raise RemoteProtocolError(
                f"replica: it says that it is broker {hello.broker_id}, as this one is"
            )
        known = self._table.hellos.get(replica)
        if known is not None and known.broker_id != hello.broker_id:
            raise RemoteProtocolError(
                f"replica: it says that it is broker {hello.broker_id}, before that "
                f"{known.broker_id}"
            )
        if not replica.connection.is_writable:
            raise RemoteProtocolError("replica: it greets again, and does not read what was sent")

    def _end_older(self, replica: Replica, broker_id: int) -> None:
        """Ends other connections of the same slave: it has left them.

        What they still report is from before: a power cut may have taken the end of its log since.
        """
        for other, hello in list(self._table.hellos.items()):
            if other is replica or hello.broker_id != broker_id or hello.is_learner:
                continue
            assert isinstance(other, Replica)
            other.connection.end(
                ConnectionAbortedError(f"broker {broker_id} is back, at {replica.address}")
            )

    def _set_changed(self) -> None:
        for done, status in self._table.satisfied():
            done(status)
        self._review()
        if self._store.dispatch_behind_bytes:
            self._dispatch_soon()

    def _review(self) -> None:
        sync_set = self.sync_set
        now_ms = _loop_ms()
        if sync_set is None or self._has_given_up or now_ms < self._ask_at_ms:
            return
        if self._server is None:
            return
        wanted = sync_set.wanted(now_ms)
        if wanted is not None:
            sync_set.asked(wanted, now_ms)
            self._start(self._ask(sync_set, wanted), "oberth-sync-set")

    async def _ask(self, sync_set: SyncSet, wanted: frozenset[int]) -> None:
        request = SyncStateSet(sync_state_set=sorted(wanted), sync_state_set_epoch=sync_set.epoch)
        try:
            found = await self._role.keeper.alter_sync_set(self._role.epoch, request)
        except ChangeRefusedError as error:
            _LOG.warning(
                "the controller refuses %s as the set of replicas in sync: %s",
                sorted(wanted),
                error,
            )
            sync_set.refused(_loop_ms())
            self._role.keeper.look_soon()
            self._ask_at_ms = _loop_ms() + ASK_AGAIN_MS
        except Exception as error:  # noqa: BLE001 - whatever it is, it may have been made
            _LOG.warning(
                "the set of replicas in sync could not become %s: %s", sorted(wanted), error
            )
            sync_set.unanswered()
            self._ask_at_ms = _loop_ms() + ASK_AGAIN_MS
        else:
            sync_set.answered(found.sync_state_set or (), found.sync_state_set_epoch, _loop_ms())
            _LOG.warning("the set of replicas in sync is now %s", sorted(sync_set.members))
        self._set_changed()

    # The slave's side

    @property
    def lacks_master(self) -> bool:
        """False: a controller says who the master is."""
        return False

    def master_found(self, master_address: str | None, ha_address: str | None) -> None:
        """Nothing: the controller says who the master is, and the master where its HA port is."""

    @property
    def _knows_master(self) -> bool:
        return self.master_address is not None

    def _may_have_been_alone(self) -> bool:
        """See HAService. Where acknowledgements wait for the sync set nobody has read such."""
        return super()._may_have_been_alone() and not self._acknowledges_copies

    def _connected(self) -> None:
        """Nothing: the master's epochs say whether this log joins on, see `_join_on`."""

    def master_moved(self, address: str) -> None:
        """The master that this slave follows serves elsewhere now."""
        self.master_address = address

    async def _follow(self) -> None:
        while True:
            try:
                address = await self._ask_ha_address()
                if address:
                    self.master_ha_address = address
                    await self._follow_once(address)
                    self._said = ""
            except (OSError, TimeoutError, ValueError, OberthError) as error:
                text = str(error) or type(error).__name__
                if text != self._said:  # some times a second while the master is away
                    _LOG.warning(
                        "replication from the master at %s is interrupted: %s",
                        self.master_address,
                        text,
                    )
                self._said = text
            await asyncio.sleep(RECONNECT_S)

    async def _ask_ha_address(self) -> str | None:
        """Where the master's HA port is; None while there is no master, or it knows of no role."""
        if self.master_address is None:
            return None
        response = await self._client.invoke(
            self.master_address,
            create_request(RequestCode.EXCHANGE_BROKER_HA_INFO),
            REQUEST_TIMEOUT_S,
        )
        if response.code != ResponseCode.SUCCESS:
            raise RemotingError(f"906 is answered with {response.code}: {response.remark}")
        return response.header(ExchangeHAInfoResponseHeader).master_ha_address

    def _greeting(self) -> bytes:
        config = self._store_config
        return SlaveHello(
            self._role.broker_id, config.sync_from_last_file, config.async_learner
        ).encode()

    def _report(self) -> bytes:
        return SLAVE_REPORT.pack(TRANSFER, self._end_to_report())

    @property
    def _may_report(self) -> bool:
        """See HAService: once the master's epochs have said so, on this connection."""
        return self._has_joined

    def _make_link(self) -> LogStream:
        self._has_joined = False
        return EpochStream(self._take_frames)

    def _take_frames(self, frames: Iterable[MasterHello | EpochPiece]) -> Iterator[LogPiece]:
        """The pieces of what came at once; who takes them appends each before the next.

        Their epochs are on the disk before their bytes, however many there are with one sync.
        """
        pieces: list[tuple[int, bytes | memoryview]] = []
        confirmed, are_new = 0, False
        for each in frames:
            if isinstance(each, MasterHello):
                self._join_on(each)
                continue
            are_new |= self.epochs.append(each.epoch)
            pieces.append((each.commit_log_offset, each.data))
            confirmed = max(confirmed, each.confirm_offset)
        if are_new:
            self._save()
        yield from join_pieces(pieces, self._store_config.mapped_file_size_commit_log)
        self._confirmed = max(self._confirmed, min(confirmed, self._store.max_phy_offset))

    def _join_on(self, master: MasterHello) -> None:
        """Sees to it that this log is one that the master's goes on from.

        Raises:
            RemoteProtocolError: it has to be cut first, or has nothing in common.
        """
        end = self._store.max_phy_offset
        self._refuse_older(end, master.epochs)
        at = 0 if end == 0 else self.epochs.common_end(end, master.epochs, master.max_offset)
        if at is None:
            raise RemoteProtocolError(
                f"this log, up to {end}, has no epoch in common with the master's, up to "
                f"{master.max_offset}; 'oberth store rejoin' makes it one that joins on"
            )
        has_parted = at < end
        at = min(at, self._store.sound_offset)
        if at < end:
            why = "has parted from the master's" if has_parted else "is damaged since a crash"
            self._role.keeper.must_cut(at)
            raise RemoteProtocolError(f"this log ends at {end} and {why}; it is cut at {at}")
        if self.epochs.cut_from(at):
            self._save()
        self._has_joined = True
        self._joined()

    def _refuse_older(self, end: int, masters: EpochTable) -> None:
        """Epochs only grow: a master that has none as new as this log's is one by mistake.

        The controller has forgotten an epoch, and others may have been told that what would be cut
        off here is safe.
        """
        own, other = self.epochs.last, masters.last
        if not end or own is None or other is None or own == other or own.number < other.number:
            return
        raise RemoteProtocolError(
            f"this log has epoch {own.number} from {own.start} on, the master's newest is epoch "
            f"{other.number} from {other.start} on: the controller's file is older than this log; "
            "nothing is cut. 'oberth store rejoin' decides for the master's"
        )


def _loop_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)


def _epochs_path(config: MessageStoreConfig, root: str) -> str:
    return config.store_path_epoch_file or f"{root}/{FILE_NAME}"


def newest_epoch(files: FileSystem, config: MessageStoreConfig) -> int:
    """The newest epoch in a store that is not open; 0 if it has none, or the file is damaged."""
    root = os.path.abspath(os.path.expanduser(config.store_path_root_dir))
    path = _epochs_path(config, root)
    data = files.read_file(path)
    if data is None:
        return 0
    with contextlib.suppress(ConfigFormatError):
        last = parse_epochs(data, name=path).last
        return 0 if last is None else last.number
    return 0
