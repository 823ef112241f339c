"""GroupCommit: who leads, what a leader appends and syncs for whom, and who is told what.

Against a log whose appends and syncs the test holds up, counts and makes fail.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from oberth.formats.message_store_config import MessageStoreConfig
from oberth.store import group_commit
from oberth.store.group_commit import GroupCommit, _Waiter
from oberth.store.messages import MessageExtBrokerInner, PutMessageResult, PutMessageStatus

SIZE = 100
OK = PutMessageStatus.PUT_OK
TIMEOUT = PutMessageStatus.FLUSH_DISK_TIMEOUT
REFUSED = PutMessageStatus.SERVICE_NOT_AVAILABLE


class Gate:
    """Whoever comes through is held while it is closed."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self._entered = threading.Semaphore(0)
        self.close, self.open = self._open.clear, self._open.set

    def enter(self) -> None:
        self._entered.release()
        assert self._open.wait(10)

    def wait_entered(self) -> None:
        assert self._entered.acquire(timeout=10)


class Log:
    """Where messages go: what `GroupCommit` needs of a CommitLog and its files."""

    def __init__(self, timeout_ms: int = 10_000) -> None:
        self.flushed_where = 0
        self.bodies: list[bytes] = []
        self.bursts: list[int] = []
        self.syncs = 0
        self.appending, self.syncing = Gate(), Gate()
        self.is_broken = False
        self.wakes = 0
        config = MessageStoreConfig(sync_flush_timeout_ms=timeout_ms)
        self.group = GroupCommit(config, self, self.append, self.sync, self.wake)  # type: ignore[arg-type]

    def append(
        self,
        messages: Sequence[MessageExtBrokerInner],
        outcomes: list[PutMessageResult | Exception],
    ) -> None:
        self.bursts.append(len(messages))
        self.appending.enter()
        for message in messages:
            if self.is_broken:
                outcomes.append(PutMessageResult(REFUSED))
            elif message.body == b"bad":
                outcomes.append(ValueError("bad"))
            elif message.body == b"interrupt":
                message.body = b"interrupted once"
                raise KeyboardInterrupt
            else:
                outcomes.append(PutMessageResult(OK, len(self.bodies) * SIZE, SIZE))
                self.bodies.append(message.body)

    def sync(self) -> bool:
        end = len(self.bodies) * SIZE
        self.syncs += 1
        self.syncing.enter()
        if self.is_broken:
            return False
        self.flushed_where = end
        return True

    def wake(self) -> None:
        self.wakes += 1

    def put(self, body: bytes) -> PutMessageResult:
        return self.group.put(MessageExtBrokerInner("t", body))


class Callers:
    """Threads that put a message each; the first one's sync is held up until `release`."""

    def __init__(self, log: Log, bodies: Sequence[bytes]) -> None:
        self.log = log
        self.outcomes: dict[bytes, PutMessageResult | BaseException] = {}
        log.syncing.close()
        self.threads = [self._start(bodies[0])]
        log.syncing.wait_entered()
        for number, body in enumerate(bodies[1:], 1):
            self.threads.append(self._start(body))
            wait_until(lambda number=number: len(log.group._waiters) == number)  # type: ignore[misc]

    def _start(self, body: bytes) -> threading.Thread:
        thread = threading.Thread(target=self._put, args=(body,))
        thread.start()
        return thread

    def _put(self, body: bytes) -> None:
        try:
            self.outcomes[body] = self.log.put(body)
        except BaseException as error:  # noqa: BLE001 - a KeyboardInterrupt among them
            self.outcomes[body] = error

    def join(self) -> None:
        for thread in self.threads:
            thread.join(10)
            assert not thread.is_alive()
        assert not self.log.group._leading
        assert not self.log.group._waiters
        assert not self.log.group._answered

    def release(self) -> None:
        self.log.syncing.open()
        self.join()

    def statuses(self) -> list[PutMessageStatus]:
        return [
            outcome.status
            for outcome in self.outcomes.values()
            if isinstance(outcome, PutMessageResult)
        ]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def names(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_one_caller_appends_and_syncs_by_itself() -> None:
    log = Log()
    first, second = log.put(b"a"), log.put(b"b")
    assert (first.status, second.status) == (OK, OK)
    assert (log.bursts, log.syncs, log.flushed_where) == ([1, 1], 2, 2 * SIZE)


def test_those_who_come_during_a_sync_share_one_burst_and_one_sync() -> None:
    log = Log()
    callers = Callers(log, names(12))
    assert log.bodies == [b"0"]
    callers.release()
    assert callers.statuses() == [OK] * 12
    assert log.bursts == [1, 11]
    assert log.syncs == 2
    assert log.flushed_where == 12 * SIZE
    # In the order in which they came, but for the one that leads them.
    assert log.bodies == names(12)
    offsets = {
        outcome.commit_log_offset
        for outcome in callers.outcomes.values()
        if isinstance(outcome, PutMessageResult)
    }
    assert offsets == set(range(0, 12 * SIZE, SIZE))


def test_what_is_acknowledged_is_synced() -> None:
    """Callers that put, and some that appended themselves, again and again."""
    log = Log()
    seed = random.randrange(1 << 30)
    late: list[int] = []

    def run(number: int) -> None:
        chance = random.Random(seed + number)
        for _ in range(50):
            if chance.random() < 0.8:
                end = log.put(b"x").end_offset
            else:
                end = len(log.bodies) * SIZE
                assert log.group.wait_durable(end) is OK
            if log.flushed_where < end:
                late.append(end)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert not late, f"seed {seed}"
    assert not log.group._leading


def test_a_failed_sync_is_told_to_all_who_waited_for_it() -> None:
    log = Log()
    log.put(b"before")
    log.syncing.wait_entered()
    callers = Callers(log, [b"led", b"1", b"2"])
    log.is_broken = True
    callers.release()
    (led,) = _results(callers, b"led")
    assert (led.status, led.end_offset) == (TIMEOUT, 2 * SIZE)
    # They had not been appended yet, and a store whose sync has failed takes no more.
    assert [outcome.status for outcome in _results(callers, b"1", b"2")] == [REFUSED] * 2
    assert log.flushed_where == SIZE


def test_those_who_shared_a_burst_share_its_failure() -> None:
    log = Log()
    callers = Callers(log, names(6))
    log.appending.close()
    log.appending.wait_entered()
    log.syncing.open()
    log.appending.wait_entered()
    log.syncing.close()
    log.appending.open()
    log.syncing.wait_entered()
    assert len(log.bodies) == 6
    log.is_broken = True
    log.syncing.open()
    callers.join()
    statuses = [outcome.status for outcome in _results(callers, *names(6))]
    assert statuses == [OK] + [TIMEOUT] * 5


def _results(callers: Callers, *bodies: bytes) -> list[PutMessageResult]:
    outcomes = [callers.outcomes[body] for body in bodies]
    assert all(isinstance(outcome, PutMessageResult) for outcome in outcomes)
    return [outcome for outcome in outcomes if isinstance(outcome, PutMessageResult)]


def test_what_a_message_raises_reaches_its_caller_alone() -> None:
    log = Log()
    with pytest.raises(ValueError, match="bad"):
        log.put(b"bad")
    callers = Callers(log, [b"0", b"1", b"bad", b"2"])
    callers.release()
    assert isinstance(callers.outcomes[b"bad"], ValueError)
    assert callers.statuses() == [OK] * 3
    assert log.bodies == [b"0", b"1", b"2"]
    assert log.put(b"3").status is OK


def test_a_wait_that_takes_too_long_leaves_its_message_in_the_log() -> None:
    log = Log(timeout_ms=50)
    log.syncing.close()
    leader = threading.Thread(target=log.put, args=(b"a",))
    leader.start()
    log.syncing.wait_entered()
    late = log.put(b"late")
    assert late.status is TIMEOUT
    assert (late.commit_log_offset, log.bodies) == (SIZE, [b"a", b"late"])
    assert not log.group._waiters
    log.syncing.open()
    leader.join(10)
    assert log.put(b"b").status is OK
    assert log.bodies == [b"a", b"late", b"b"]
    with pytest.raises(ValueError, match="bad"):
        log.put(b"bad")


def test_a_message_that_a_leader_is_appending_is_not_appended_twice() -> None:
    log = Log(timeout_ms=50)
    callers = Callers(log, [b"a"])
    log.appending.wait_entered()
    log.appending.close()
    polls = 0
    group = log.group
    give_up = group._give_up

    def spy(waiter: object) -> bool:
        nonlocal polls
        polls += 1
        log.appending.open()  # its time is up while the append has not ended
        return give_up(waiter)  # type: ignore[arg-type]

    group._give_up = spy  # type: ignore[method-assign]
    # Two who come while the sync is on: one of them leads, and its append is held up.
    config = group._config
    config.sync_flush_timeout_ms = 10_000
    callers.threads.append(callers._start(b"b"))
    wait_until(lambda: len(group._waiters) == 1)
    config.sync_flush_timeout_ms = 300
    callers.threads.append(callers._start(b"c"))
    wait_until(lambda: len(group._waiters) == 2)
    callers.log.syncing.open()
    callers.join()
    assert polls == 1
    assert sorted(log.bodies) == [b"a", b"b", b"c"]
    assert callers.statuses() == [OK] * 3


def test_a_leader_that_is_interrupted_leaves_the_rest_to_the_next() -> None:
    log = Log()
    callers = Callers(log, [b"0", b"1", b"interrupt", b"2", b"3"])
    callers.release()
    # The first of those waiting leads: the exception comes to it, as a signal would.
    assert isinstance(callers.outcomes[b"1"], KeyboardInterrupt)
    assert callers.statuses() == [OK] * 4
    assert sorted(log.bodies) == [b"0", b"1", b"2", b"3", b"interrupted once"]


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals a thread")
def test_a_put_that_is_interrupted_while_it_waits_is_not_appended(
    request: pytest.FixtureRequest,
) -> None:
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("only the main thread handles signals")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    log = Log()
    callers = Callers(log, [b"0", b"1"])

    def interrupt() -> None:
        wait_until(lambda: len(log.group._waiters) == 2)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        log.put(b"mine")
    interrupter.join(10)
    callers.release()
    assert log.bodies == [b"0", b"1"]
    assert log.put(b"mine").status is OK


@pytest.mark.parametrize(
    ("here", "away", "sync_s", "wake_s", "is_waking", "is_time"),
    [
        # Nobody is left to wake.
        (0, 0, 1.0, 0.1, False, True),
        (5, 0, 1.0, 0.1, False, True),
        # Waking all ten takes less than a sync: they shall share the next one.
        (5, 5, 1.1, 0.1, True, False),
        (9, 1, 1.1, 0.1, True, False),
        # It takes more: half of them are enough.
        (4, 6, 0.9, 0.1, True, False),
        (5, 5, 0.9, 0.1, True, True),
        (0, 1, 0.05, 0.1, True, False),
    ],
)
def test_the_next_leader_comes_in_time(
    here: int, away: int, sync_s: float, wake_s: float, is_waking: bool, is_time: bool
) -> None:
    group = Log().group
    group._waiters = [_Waiter() for _ in range(here)]
    group._answered.extend(_Waiter() for _ in range(away))
    group._sync_s, group._wake_s, group._is_waking = sync_s, wake_s, is_waking
    assert group._is_time_to_lead() is is_time


def test_a_sync_begins_while_those_of_the_one_before_are_still_being_woken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_commit, "_WAKE_WEIGHT", 0.0)
    monkeypatch.setattr(group_commit, "_WAKE_S_MIN", 60.0)
    log = Log()
    log.group._wake_s = 60.0  # what callers do takes long, syncs do not
    wake_next = log.group._wake_next
    held: list[int] = []

    def spy(*, is_link: bool = True) -> None:
        if is_link and not held:
            held.append(len(log.group._answered))
            log.syncing.wait_entered()  # the third sync
        wake_next(is_link=is_link)

    monkeypatch.setattr(log.group, "_wake_next", spy)
    callers = Callers(log, names(6))
    log.appending.close()
    log.syncing.open()
    wait_until(lambda: log.bursts == [1, 5])
    for number in range(6, 12):
        callers.threads.append(callers._start(b"%d" % number))
    wait_until(lambda: len(log.group._waiters) == 4 + 6)
    log.syncing.close()
    log.appending.open()
    log.syncing.wait_entered()
    log.syncing.open()
    callers.join()
    # Three were not woken yet; that sync may also have answered its five before the test looked.
    assert held in ([3], [8])
    assert callers.statuses() == [OK] * 12
    assert log.bursts == [1, 5, 6]


def test_callbacks_are_told_by_whoever_leads() -> None:
    log = Log()
    told: list[PutMessageStatus] = []
    end = SIZE
    log.append([MessageExtBrokerInner("t", b"a")], [])
    log.group.when_durable(end, told.append)
    assert (told, log.wakes) == ([], 1)
    log.put(b"b")
    assert told == [OK]
    log.group.when_durable(end, told.append)
    assert told == [OK, OK]


def test_a_callback_that_a_sync_does_not_cover_waits_for_the_next() -> None:
    log = Log()
    told: list[PutMessageStatus] = []
    log.group.when_durable(2 * SIZE, told.append)
    log.put(b"a")
    assert (told, log.wakes) == ([], 2)
    log.put(b"b")
    assert told == [OK]


def test_the_end_answers_all_who_still_wait() -> None:
    log = Log()
    callers = Callers(log, names(3))
    told: list[PutMessageStatus] = []
    log.group.when_durable(1 << 40, told.append)
    log.group.finish()
    callers.release()
    assert told == [TIMEOUT]
    assert sorted(callers.statuses()) == [OK, REFUSED, REFUSED]
    assert log.bodies == [b"0"]
