"""The brokers of ``oberth up --brokers N``: processes of their own that share nothing.

The first broker keeps the store, name and ports that it has without others; the one with number n
has ``-n`` behind the store's folder and the broker's name, and ports 10 (n - 1) higher. Topics and
groups that one of them has are made at all of them when they start; from then on clients make them
everywhere by themselves, since their routes name all brokers.

A store of a higher number that still lies there is drained: its broker runs without write
permission, so that producers leave it and consumers read it to its end.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from oberth.broker.metrics import NATIVE
from oberth.broker.tasks import result_in_turns
from oberth.cli.output import say
from oberth.cli.serve import PORTS
from oberth.errors import OberthError, OptionError
from oberth.formats import names
from oberth.formats.paths import COMMIT_LOG
from oberth.store.offline.lock_state import is_locked

if TYPE_CHECKING:
    from oberth.client.admin import Admin
    from oberth.formats.message_store_config import MessageStoreConfig
    from oberth.remoting.bodies.stats import TopicOffset

PORT_DISTANCE: Final = 10
"""Between the ports of two brokers."""

BROKERS_MAX: Final = 64

END_TIMEOUT_S: Final = 60.0
"""For a broker to sync and close its store."""

RESTART_S: Final = 1.0
RESTART_MAX_S: Final = 30.0
"""Before a broker that ended by itself is started again: the first time, and at most."""

DRAIN_LOOK_S: Final = 10.0
"""Seconds between two looks at brokers that drain."""

FETCH_TIMEOUT_S: Final = 5.0
"""For a broker's page of metrics; who asks for all of them waits ten seconds, most often."""

PAGE_SIZE_MAX: Final = 64 << 20
"""Bytes of a broker's page of metrics."""

LINES_A_SLICE: Final = 100
"""Lines of metrics that are joined in a turn of the loop, in half a millisecond."""

NAMED_MAX: Final = 5
"""Topics, or groups, that a line about a drain names."""

READ_ONLY: Final = "4"

_MOVED_PORTS: Final = ("fastListenPort", "haListenPort", "grpcServerPort")
_READY: Final = re.compile(r"ready: broker (\S+?),")
_SAMPLE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S.*)")


class Member(NamedTuple):
    """One of the brokers.

    Attributes:
        number: 1 for the first.
        name: brokerName.
        store: folder of its store.
        settings: its own settings, beside the configuration that all have.
        drains: whether it takes no messages any more.
        replica: which replica of its name it is; 0 without replicas.
    """

    number: int
    name: str
    store: str
    settings: dict[str, str]
    drains: bool
    replica: int = 0

    @property
    def label(self) -> str:
        """Its name where replicas have to be told apart."""
        return f"{self.name} replica {self.replica}" if self.replica else self.name


def replicated(
    groups: int,
    replicas: int,
    entries: Mapping[str, str],
    store_config: MessageStoreConfig,
    broker_name: str,
    controller: str,
) -> list[Member]:
    """The brokers of ``--replicas``: that number of each name, under a controller.

    The first replica keeps the store; that with number n has ``-rn`` behind its folder. What is
    acknowledged is at every replica in sync; of three or more these are never less than two.

    Raises:
        OptionError: a setting that brokers cannot share, or too many brokers.
    """
    flag = f"--replicas {replicas}"
    _refuse_shared(flag, entries)
    for key in ("brokerId", "brokerRole", "enableControllerMode", "controllerAddr"):
        if key in entries:
            raise OptionError(f"{flag}: {key} is the controller's business")
    if groups * replicas > BROKERS_MAX:
        raise OptionError(f"{flag}: {groups * replicas} brokers, at most {BROKERS_MAX} are allowed")
    root = os.path.abspath(os.path.expanduser(store_config.store_path_root_dir))
    made = []
    for number in range(1, groups * replicas + 1):
        group, replica = divmod(number - 1, replicas)
        suffix = (f"-{group + 1}" if group else "") + (f"-r{replica + 1}" if replica else "")
        settings = {"enableControllerMode": "true", "controllerAddr": controller}
        if "allAckInSyncStateSet" not in entries:
            settings["allAckInSyncStateSet"] = "true"
        if "minInSyncReplicas" not in entries and replicas > 2:
            settings["minInSyncReplicas"] = "2"
        settings |= _ports(number, entries)
        name = f"{broker_name}-{group + 1}" if group else broker_name
        made.append(Member(number, name, root + suffix, settings, False, replica + 1))
    return made


def look_beside(root: str, served: Collection[str], who: str, *, as_replicas: bool) -> None:
    """Say which stores of earlier starts hold messages that would not be served.

    A replica's store is not served without the others: it may lack messages that only they have.
    A store that another process has open is that one's; it is named, since a process that is about
    to end leaves it to nobody.

    Args:
        root: the first broker's store.
        served: all that will be served or drained.
        who: the first broker's cluster and name, as a replica keeps them: ``cluster#name``.
        as_replicas: whether those are replicas under a controller, which knows who has everything.

    Raises:
        OptionError: there are stores of replicas, and a store would be served alone.
    """
    root = os.path.abspath(os.path.expanduser(root))
    found = _stores_of(root)
    left = [store for store in found if store not in served]
    taken = list(filter(is_locked, left))
    left = [store for store in left if store not in taken]
    if taken:
        say(f"note: {', '.join(taken)}: open in another process and left to it")
    if not left:
        return
    if root in found:
        who = _replica_of(root)
    copies = [
        store
        for store in left
        if who
        and _replica_of(store) == who + (f"-{found[store][0]}" if found[store][0] > 1 else "")
    ]
    if not as_replicas and any(found[store][1] > 1 for store in copies):
        words = _words_for([found[store] for store in copies])
        raise OptionError(
            f"{', '.join(copies)}: messages of an earlier start with {words} lie there; a replica "
            f"served alone may lack some of them: start with {words}, or move these folders away"
        )
    words = _words_for([found[store] for store in found if store in left or store in served])
    is_drained = not as_replicas and all(found[store][1] == 1 for store in left)
    drained = ", --brokers 1 drains them" if is_drained else ""
    say(
        f"warning: {', '.join(left)}: messages that may be of an earlier start with {words} lie "
        f"there, nobody serves them; {words} does{drained}"
    )


def _words_for(places: Collection[tuple[int, int]]) -> str:
    """What starts the brokers and replicas of these numbers."""
    groups, replicas = (max(numbers) for numbers in zip(*places, strict=True))
    words = [f"--brokers {groups}"] if groups > 1 else []
    return " ".join([*words, *([f"--replicas {replicas}"] if replicas > 1 else [])])


def _replica_of(store: str) -> str:
    """The cluster and name that a store was a replica's of, under a controller; "" for none."""
    from oberth.broker.controlled_broker import IDENTITY  # few starts find other stores

    try:
        text = Path(store, IDENTITY).read_text("utf-8", "replace")
    except OSError:
        return ""
    return text.strip().rpartition("#")[0]


def _stores_of(root: str) -> dict[str, tuple[int, int]]:
    """The stores beside a first one, and itself, that have messages: broker's number, replica."""
    parent, base = os.path.split(root)
    name = re.compile(re.escape(base) + r"(?:-([2-9]|[1-5][0-9]|6[0-4]))?(?:-r([2-9]))?")
    try:
        there = sorted(os.listdir(parent))
    except OSError:
        return {}
    return {
        store: (int(match[1] or 1), int(match[2] or 1))
        for match in map(name.fullmatch, there)
        if match is not None and _has_messages(store := os.path.join(parent, match[0]))
    }


def _refuse_shared(flag: str, entries: Mapping[str, str]) -> None:
    for key in entries:
        if key.startswith("storePath") and key != "storePathRootDir":
            raise OptionError(f"{flag}: {key} would be the same folder for all of them")


def _ports(number: int, entries: Mapping[str, str]) -> dict[str, str]:
    """The ports of the broker with a number, by key."""
    settings = {"listenPort": _moved(int(entries.get("listenPort", PORTS["broker"])), number)}
    for key in _MOVED_PORTS:
        if int(entries.get(key, "0")) > 0:
            settings[key] = _moved(int(entries[key]), number)
    http_port = int(entries.get("httpPort", "-1"))
    if http_port >= 0:  # this process listens there; of any free one it would not hear
        http_port = http_port + number if http_port else _free_port()
        settings |= {"httpPort": str(http_port), "httpAddress": "127.0.0.1"}
    return settings


def members(
    count: int, entries: Mapping[str, str], store_config: MessageStoreConfig, broker_name: str
) -> list[Member]:
    """The brokers to run: as many as wanted, and those of further stores, which drain.

    Raises:
        OptionError: a setting that brokers cannot share.
    """
    _refuse_shared(f"--brokers {count}", entries)
    if entries.get("brokerRole", "ASYNC_MASTER") == "SLAVE" or int(entries.get("brokerId", "0")):
        raise OptionError(f"--brokers {count}: all of them are masters; a slave is started alone")
    root = os.path.abspath(os.path.expanduser(store_config.store_path_root_dir))
    made = []
    for number in range(1, BROKERS_MAX + 1):
        store = root if number == 1 else f"{root}-{number}"
        drains = number > count
        if drains and (is_locked(store) or not _has_messages(store)):
            continue
        settings = _ports(number, entries)
        if drains:
            settings["brokerPermission"] = READ_ONLY
        name = broker_name if number == 1 else f"{broker_name}-{number}"
        made.append(Member(number, name, store, settings, drains))
    return made


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _moved(port: int, number: int) -> str:
    return str(port + PORT_DISTANCE * (number - 1) if port else 0)


def _has_messages(store: str) -> bool:
    return any(Path(store, COMMIT_LOG).glob("[0-9]*"))


class BrokerProcess:
    """One broker in a process of its own; started again when it ends by itself.

    Args:
        member: which.
        words: arguments of the command ``oberth broker``, the same for all.
    """

    def __init__(self, member: Member, words: Iterable[str]) -> None:
        self.member = member
        self.address = ""
        self._words = list(words)
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def is_up(self) -> bool:
        """Whether it runs, as far as is known."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start it and wait until it is ready.

        Raises:
            OberthError: it ended before; its error stands on stderr.
        """
        if not await self._start():
            raise OberthError(f"{self.member.label} did not start, see above")
        self._keeper = asyncio.create_task(self._keep())

    async def _start(self) -> bool:
        member = self.member
        words = [sys.executable, "-m", "oberth", "broker", "--store", member.store]
        words += self._words
        for key, value in {"brokerName": member.name, **member.settings}.items():
            words += ["--set", f"{key}={value}"]
        self._process = process = await asyncio.create_subprocess_exec(
            *words,
            "--until-stdin-ends",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for this process, which ends that one
        )
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode("utf-8", "replace")
        found = _READY.match(line)
        if found is None:
            await process.wait()
            return False
        self.address = found[1]
        return True

    async def _keep(self) -> None:
        pause_s = RESTART_S
        while True:
            assert self._process is not None
            began = time.monotonic()
            code = await self._process.wait()
            if time.monotonic() - began > RESTART_MAX_S:
                pause_s = RESTART_S
            text = f"{self.member.label} ended with {code}"
            while True:
                say(f"{text}; started again in {pause_s:.0f} s")
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, RESTART_MAX_S)
                try:
                    await self._start()
                    break
                except OSError as error:  # no memory or no process number for it just now
                    text = f"{self.member.label} cannot be started: {error}"

    async def aclose(self) -> None:
        """End it in order; kill it if it does not end."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        process = self._process
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            say(f"{self.member.label} did not end in {END_TIMEOUT_S:.0f} s and is killed")
            process.kill()
            await process.wait()


@asynccontextmanager
async def running(
    wanted: Iterable[Member], words: Iterable[str]
) -> AsyncIterator[list[BrokerProcess]]:
    """All brokers at once; ended in order.

    Raises:
        OberthError: one of them did not start.
    """
    processes = [BrokerProcess(member, words) for member in wanted]
    try:
        started = await asyncio.gather(
            *(process.start() for process in processes), return_exceptions=True
        )
        for outcome in started:
            if outcome is not None:
                raise outcome
        yield processes
    finally:
        await asyncio.gather(*(process.aclose() for process in processes))


# Topics and groups


async def spread(admin: Admin, processes: Iterable[BrokerProcess]) -> int:
    """Make at each broker that takes messages the topics and groups that another has; how many."""
    masters = await admin.masters()
    takers = [each.member.name for each in processes if not each.member.drains]
    topics = {name: await admin.all_topic_configs(addr) for name, addr in masters.items()}
    groups = {name: await admin.all_groups(addr) for name, addr in masters.items()}
    own = await _own_topics(admin)
    made = 0
    for taker in takers:
        if taker not in masters:
            continue
        for other in masters:
            for topic, config in topics[other].items():
                if topic not in topics[taker] and not _is_brokers_own(topic, own):
                    topics[taker][topic] = config
                    await admin.put_topic_config(masters[taker], config)
                    made += 1
            for group, group_config in groups[other].items():
                if group not in groups[taker]:
                    groups[taker][group] = group_config
                    await admin.create_group(group_config, broker_addr=masters[taker])
                    made += 1
    return made


async def _own_topics(admin: Admin) -> set[str]:
    """Topics that brokers make for themselves and name after themselves and their cluster."""
    info = await admin.cluster_info()
    clusters = info.cluster_addr_table
    return {*info.broker_addr_table, *clusters, *map(names.reply_topic, clusters)}


def _is_brokers_own(topic: str, own: set[str]) -> bool:
    return (
        topic in own
        or names.is_system_topic(topic)
        or names.is_lmq(topic)
        or topic.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX))
    )


# Drains


async def left_of(admin: Admin, address: str) -> list[str]:
    """What a broker still holds for somebody, a phrase each; none: its store can be moved away.

    A group reads a topic if any broker has an offset of it: where this one has none, the group was
    away while the messages came. Who will read a topic that no group has read, nobody can tell: so
    its messages are left, too, as dead letters are.
    """
    runtime = await admin.broker_runtime_info(address)
    own = await _own_topics(admin)
    here = await admin.all_consumer_offsets(address)
    readers: dict[str, set[str]] = {names.TRANS_HALF_TOPIC: {names.TRANS_GROUP}}
    for topic, group in here:
        readers.setdefault(topic, set()).add(group)
    for other in {*(await admin.masters()).values()} - {address}:
        for topic, group in await admin.all_consumer_offsets(other):
            if not names.is_system_topic(topic):  # each broker has its own of these
                readers.setdefault(topic, set()).add(group)
    lags: dict[str, int] = {}
    halves, unread = 0, {}
    for topic in sorted(await admin.all_topic_configs(address)):
        groups = readers.get(topic, set())
        if topic == names.TRANS_OP_HALF_TOPIC or topic.startswith(names.REVIVE_TOPIC_PREFIX):
            continue  # they tell of other messages; what is acknowledged stays in them
        if _is_passed_by(topic, own) and not groups:
            continue
        stats = (await admin.broker_topic_stats(address, topic)).offset_table
        ends = {queue.queue_id: each for queue, each in stats.items()}
        held = sum(max(each.max_offset - each.min_offset, 0) for each in ends.values())
        if held and not groups:
            unread[topic] = held
        for group in groups if held else ():
            lag = _lag(ends, here.get((topic, group), {}))
            if topic == names.TRANS_HALF_TOPIC:
                halves = lag
            elif lag:
                lags[group] = lags.get(group, 0) + lag
    return [*_lags_text(lags), *_unread_text(unread), *_waits_text(runtime, halves)]


def _is_passed_by(topic: str, own: Collection[str]) -> bool:
    """Whether the broker itself works a topic off, or nobody misses what is in it.

    Replies are handed to who waits for them; they, and probes of mqadmin in the topics named after
    brokers, stay in the log, and no group ever reads them.
    """
    return topic in own or (
        names.is_system_topic(topic) and topic != names.TRANS_CHECK_MAX_TIME_TOPIC
    )


def _lag(ends: Mapping[int, TopicOffset], committed: Mapping[int, int]) -> int:
    return sum(
        max(each.max_offset - max(committed.get(queue, 0), each.min_offset), 0)
        for queue, each in ends.items()
    )


def _lags_text(lags: Mapping[str, int]) -> list[str]:
    if not lags:
        return []
    return [
        f"{sum(lags.values())} messages are left for {len(lags)} groups ({_some_of(sorted(lags))})"
    ]


def _unread_text(unread: Mapping[str, int]) -> list[str]:
    if not unread:
        return []
    return [f"no group has read {_some_of([f'{n} messages of {t}' for t, n in unread.items()])}"]


def _some_of(phrases: Sequence[str]) -> str:
    more = len(phrases) - NAMED_MAX
    return ", ".join(phrases[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def _waits_text(runtime: Mapping[str, str], halves: int) -> list[str]:
    """What a broker has not delivered, by its runtime table and its half messages."""
    delayed = 0
    for key, text in runtime.items():
        if key.startswith("scheduleMessageOffset_"):
            done, _, end = text.partition(",")
            delayed += max(int(end) - max(int(done), 0), 0)
    made = [f"{delayed} delayed messages wait"] if delayed else []
    if any(int(runtime.get(key, "0")) > 0 for key in ("timerOffsetBehind", "timerSlots")):
        made.append("timed messages wait")
    if halves:
        made.append(f"{halves} transactions are not ended")
    if int(runtime.get("dispatchBehindBytes", "0")) > 0:
        made.append("messages wait for dispatch")  # by another process: nothing else knows of them
    return made


async def watch_drains(admin: Admin, processes: Iterable[BrokerProcess]) -> None:
    """Say how much brokers that drain still hold, at every change; never ends."""
    said: dict[str, list[str]] = {}
    emptied: set[str] = set()
    drained = [each for each in processes if each.member.drains]
    while drained:
        began = time.monotonic()
        for process in drained:
            try:
                left = await left_of(admin, process.address)
            except OberthError:
                continue  # it is being started again
            name = process.member.name
            if left:
                emptied.discard(name)
            elif name not in emptied:
                emptied.add(name)  # said after the next look: what moves lies nowhere for a moment
                continue
            if left != said.get(name):
                said[name] = left
                rest = "; ".join(left) or (
                    f"all groups have read it; {process.member.store} can be moved away"
                )
                say(f"{name} drains: {rest}")
        # With very many topics a look takes long: it is to be a tenth of the time at most.
        await asyncio.sleep(max(DRAIN_LOOK_S, 9 * (time.monotonic() - began)))


# Metrics


class JointMetrics:
    """The metrics of all brokers as one page: each sample says of which broker it is.

    Args:
        ports: of the brokers' own pages on loopback, by broker name.
    """

    def __init__(self, ports: Mapping[str, int]) -> None:
        self._ports = dict(ports)
        self._left_out: set[str] = set()

    async def render(self, style: str = NATIVE) -> bytearray:
        """The page; a broker that does not answer in FETCH_TIMEOUT_S is left out and named once."""
        pages = await asyncio.gather(
            *(_fetch(port, f"/metrics?format={style}") for port in self._ports.values()),
            return_exceptions=True,
        )
        there: dict[str, bytes] = {}
        for name, page in zip(self._ports, pages, strict=True):
            if isinstance(page, bytes):
                there[name] = page
                if name in self._left_out:
                    self._left_out.remove(name)
                    say(f"{name}: its metrics are there again")
            elif name not in self._left_out:
                self._left_out.add(name)
                say(f"{name}: its metrics are left out: {str(page) or type(page).__name__}")
        return await result_in_turns(joined(there))


def joined(pages: Mapping[str, bytes]) -> Generator[None, None, bytearray]:
    """Pages of several brokers as one, in slices of lines.

    Each family comes once, its samples with a label ``broker``.
    """
    families: dict[str, tuple[list[str], list[str]]] = {}
    for broker, page in pages.items():
        label = f'broker="{broker}"'
        current: tuple[list[str], list[str]] = families.setdefault("", ([], []))
        for count, raw in enumerate(io.BytesIO(page), 1):
            if count % LINES_A_SLICE == 0:
                yield
            line = raw.decode("utf-8", "replace").rstrip("\r\n")
            if line.startswith("# "):
                words = line.split(" ", 3)
                current = families.setdefault(words[2] if len(words) > 2 else "", ([], []))
                if line not in current[0]:
                    current[0].append(line)
                continue
            found = _SAMPLE.fullmatch(line)
            if found is None:
                continue
            name, labels, value = found.groups()
            if labels and re.search(r'(?:^|,)broker="', labels):
                current[1].append(line)
            else:
                current[1].append(f"{name}{{{labels + ',' if labels else ''}{label}}} {value}")
    page_of_all = bytearray()
    for heads, samples in families.values():
        page_of_all += "".join(f"{line}\n" for line in heads).encode()
        for at in range(0, len(samples), LINES_A_SLICE):
            yield
            lines = samples[at : at + LINES_A_SLICE]
            page_of_all += "".join(f"{line}\n" for line in lines).encode()
    return page_of_all


async def _fetch(port: int, target: str) -> bytes:
    """A page of a broker on loopback.

    Raises:
        OSError: nobody listens, it is too long, or it was not made.
        TimeoutError: it did not come in FETCH_TIMEOUT_S.
    """
    try:
        async with asyncio.timeout(FETCH_TIMEOUT_S):
            return await _answer_of(port, target)
    except TimeoutError as error:
        raise TimeoutError(f"port {port}: no answer in {FETCH_TIMEOUT_S:g} s") from error


async def _answer_of(port: int, target: str) -> bytes:
    answer = bytearray()
    async with AsyncExitStack() as stack:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        stack.callback(writer.close)
        writer.write(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        while data := await reader.read(1 << 16):
            answer += data
            if len(answer) > PAGE_SIZE_MAX:
                raise ConnectionError(f"port {port}: a page of more than {PAGE_SIZE_MAX} bytes")
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    if b" 200 " not in head.partition(b"\r\n")[0]:
        raise ConnectionError(f"port {port}: {head[:80]!r}")
    return body
