"""``oberth top``: a cluster as it is doing now, refreshed.

Asks with codes that RocketMQ's brokers answer too: 106, 28, 43, 202, 203, 206, 328. What a broker
refuses or does not know is left out, and said once per screen.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

import click

from oberth.cli.output import say, write_json, write_json_line
from oberth.cli.remote import ask, cluster_option, named_after_brokers, namesrv_option
from oberth.cli.top_view import Sample, lines, view
from oberth.client.admin import Admin
from oberth.errors import MQBrokerError, MQClientError, OberthError, RemotingError
from oberth.formats.names import is_system_group, is_system_topic
from oberth.remoting.bodies.route import MASTER_ID

QUESTIONS_MAX: Final = 16
"""Requests on their way at the same time: a watcher must not be a load."""

GROUPS_ASKED_MAX: Final = 64
"""Groups whose members are counted in one sample; the rest keep their last count."""

ENTER: Final = "\x1b[?1049h\x1b[?25l"
LEAVE: Final = "\x1b[?25h\x1b[?1049l"
HOME: Final = "\x1b[H"
CLEAR_LINE: Final = "\x1b[K"
CLEAR_REST: Final = "\x1b[J"


@click.command()
@namesrv_option
@cluster_option
@click.option(
    "--interval",
    type=click.FloatRange(0.2, 3600),
    default=2.0,
    show_default=True,
    help="Seconds between two screens.",
)
@click.option("--once", is_flag=True, help="Show one screen, after one interval, and end.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object on stdout for each screen.")
@click.option(
    "--topics",
    "topics_max",
    type=click.IntRange(0),
    default=500,
    show_default=True,
    help="Ask for at most N topics; each takes a request.",
    metavar="N",
)
@click.option("--system", is_flag=True, help="Show the brokers' own topics and groups, too.")
def top(
    namesrv: str,
    cluster: str | None,
    interval: float,
    once: bool,
    as_json: bool,
    topics_max: int,
    system: bool,
) -> None:
    """Watch rates in and out by topic and group, lags, the slowest stages, disks, connections.

    Works with Oberth's brokers and with Apache's. Ctrl-C ends it. A rate needs two screens, so the
    first one has only the rates that brokers report.

    Example: oberth top --once --json
    """
    is_screen = not (as_json or once) and sys.stdout.isatty()

    async def watch(admin: Admin) -> None:
        sampler = Sampler(admin, cluster, topics_max, with_system=system)
        before: Sample | None = None
        while True:
            now = await sampler.sample()
            if not (once and before is None):
                shown = view(before, now)
                if as_json:
                    (write_json if once else write_json_line)(shown)
                    sys.stdout.flush()
                else:
                    _draw(shown, namesrv, is_screen=is_screen, limited=is_screen)
                if once:
                    return
            before = now
            await asyncio.sleep(interval)

    try:
        with _screen(is_screen):
            ask(namesrv, watch)
    except KeyboardInterrupt:
        if not is_screen:
            say("stopped")


@contextmanager
def _screen(shown: bool) -> Iterator[None]:
    """The terminal's other screen; the first one comes back at the end, also after an error."""
    if not shown:
        yield
        return
    # Also where they are ignored, as in processes that a script starts in the background.
    ending = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.default_int_handler) for number in ending]
    sys.stdout.write(ENTER)
    try:
        yield
    finally:
        sys.stdout.write(LEAVE)
        sys.stdout.flush()
        for number, handler in zip(ending, before, strict=True):
            signal.signal(number, handler)


def _draw(shown: dict[str, object], namesrv: str, *, is_screen: bool, limited: bool) -> None:
    size = shutil.get_terminal_size() if limited else None
    clock = time.strftime("%H:%M:%S")
    made = lines(
        shown,
        rows=10_000 if size is None else size.lines - 1,
        width=10_000 if size is None else size.columns,
        title=f"oberth top  {namesrv}  {clock}",
    )
    if is_screen:
        text = "".join(f"{line}{CLEAR_LINE}\n" for line in made)
        sys.stdout.write(f"{HOME}{text}{CLEAR_REST}")
    else:
        sys.stdout.write("\n".join(made) + "\n")
    sys.stdout.flush()


class Sampler:
    """Asks a cluster, again and again."""

    def __init__(
        self, admin: Admin, cluster: str | None, topics_max: int, *, with_system: bool
    ) -> None:
        self._admin = admin
        self._cluster = cluster
        self._topics_max = topics_max
        self._with_system = with_system
        self._gate = asyncio.Semaphore(QUESTIONS_MAX)
        self._members: dict[str, int] = {}
        self._asked_at: dict[str, float] = {}
        self._of_brokers: set[str] = set()
        self._silent: set[str] = set()

    async def sample(self) -> Sample:
        """One round of questions; brokers that do not answer are in ``failures``."""
        found = Sample(time.monotonic())
        self._silent = set()
        info = await self._admin.cluster_info()
        self._of_brokers = named_after_brokers(info)
        wanted = set(info.broker_addr_table)
        if self._cluster is not None:
            if self._cluster not in info.cluster_addr_table:
                known = ", ".join(sorted(info.cluster_addr_table)) or "none"
                raise MQClientError(f"there is no cluster {self._cluster!r}; known: {known}")
            wanted = set(info.cluster_addr_table[self._cluster])
        masters: dict[str, str] = {}
        work: list[Awaitable[None]] = []
        for name in sorted(wanted):
            for broker_id, address in sorted(info.broker_addr_table[name].broker_addrs.items()):
                found.brokers[name, int(broker_id), address] = {}
                work.append(self._runtime(found, (name, int(broker_id), address)))
                if broker_id == MASTER_ID:
                    masters[name] = address
        for name, address in masters.items():
            work += [
                self._topics(found, name, address),
                self._offsets(found, name, address),
                self._producers(found, address),
            ]
        await asyncio.gather(*work)
        await self._count_members(found, masters)
        found.members = dict(self._members)
        return found

    async def _answer(
        self, found: Sample, address: str, question: Callable[[], Awaitable[None]]
    ) -> None:
        async with self._gate:
            if address in self._silent:
                return  # a broker that hangs costs its time-out once in a round
            try:
                await question()
            except OberthError as error:
                if isinstance(error, RemotingError):
                    self._silent.add(address)
                found.failures.setdefault(address, str(error).splitlines()[0][:200])

    async def _runtime(self, found: Sample, key: tuple[str, int, str]) -> None:
        async def question() -> None:
            found.brokers[key] = await self._admin.broker_runtime_info(key[2])

        await self._answer(found, key[2], question)

    async def _topics(self, found: Sample, broker: str, address: str) -> None:
        names: list[str] = []

        async def question() -> None:
            names.extend(await self._admin.all_topic_configs(address))

        await self._answer(found, address, question)
        names = sorted(
            name
            for name in names
            if self._with_system or not (is_system_topic(name) or name in self._of_brokers)
        )
        found.topics_left_out = max(found.topics_left_out, len(names) - self._topics_max)
        await asyncio.gather(
            *(self._ends(found, broker, address, name) for name in names[: self._topics_max])
        )

    async def _ends(self, found: Sample, broker: str, address: str, topic: str) -> None:
        async def question() -> None:
            try:
                stats = await self._admin.broker_topic_stats(address, topic)
            except MQBrokerError:
                return  # deleted meanwhile
            for queue, ends in stats.offset_table.items():
                found.ends[broker, topic, queue.queue_id] = ends.max_offset

        await self._answer(found, address, question)

    async def _offsets(self, found: Sample, broker: str, address: str) -> None:
        async def question() -> None:
            for key, queues in (await self._admin.all_consumer_offsets(address)).items():
                if not self._with_system and is_system_group(key[1]):
                    continue
                table = found.offsets.setdefault(key, {})
                for queue_id, offset in queues.items():
                    table[broker, queue_id] = offset

        await self._answer(found, address, question)

    async def _producers(self, found: Sample, address: str) -> None:
        async def question() -> None:
            for group, count in (await self._admin.all_producers(address)).items():
                # A client is connected to every broker it sends to.
                found.producers[group] = max(found.producers.get(group, 0), count)

        await self._answer(found, address, question)

    async def _count_members(self, found: Sample, masters: dict[str, str]) -> None:
        groups = sorted(
            {group for _, group in found.offsets}, key=lambda each: self._asked_at.get(each, 0.0)
        )
        for group in groups[:GROUPS_ASKED_MAX]:
            self._asked_at[group] = found.at_s
        await asyncio.gather(
            *(self._members_of(found, group, masters) for group in groups[:GROUPS_ASKED_MAX])
        )

    async def _members_of(self, found: Sample, group: str, masters: dict[str, str]) -> None:
        most = 0
        for address in masters.values():

            async def question(address: str = address) -> None:
                nonlocal most
                try:
                    answer = await self._admin.consumer_connection(group, address)
                except MQBrokerError:
                    return  # nobody of the group is connected there
                most = max(most, len(answer.connection_set))

            await self._answer(found, address, question)
        self._members[group] = most
