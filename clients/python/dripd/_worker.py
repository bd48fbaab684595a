"""A worker: it takes one job at a time, renews its lease while it runs, and says how it ended."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import logging
import queue
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from redis.exceptions import DataError, RedisError

from . import limits
from ._redis import Refused

BLOCK_MS = 2000  # how long a read waits
BLOCK_EACH_MS = 100  # the same where a worker goes round several partitions
GRACE_S = 4.0  # how long the job in hand may go on after a stop
LAST_WORDS_S = 1.0  # and how long after that it is still told how a job ended, where Redis is away
PAUSE_S = 0.05, 1.0  # before a call is repeated: the first one, and the longest
LOG_EVERY_S = 60.0  # that Redis is away
log = logging.getLogger("dripd")


class Dead(Exception):
    """Raised by your work: trying this job again is of no use."""


class RetryIn(Exception):
    """Raised by your work: it failed, and is to be tried again in so many milliseconds instead of after its back-off."""

    def __init__(self, ms: int, reason: str = "failed") -> None:
        super().__init__(reason)
        self.ms = ms


class Throttled(Exception):
    """Raised by your work: the other side said that it is too fast (429). The bucket slows down, or the budget that is named. Without a time
    it is the one that `Job.limits` has read."""

    def __init__(self, retry_after_ms: int = 0, budget: str | None = None, reason: str = "throttled") -> None:
        super().__init__(reason)
        self.retry_after_ms, self.budget = retry_after_ms, budget


@dataclass(frozen=True)
class Job:
    """A job as a worker gets it."""

    bucket: str
    body: bytes
    attempt: int  # 1 for the first try
    id: str  # the same in every try, and no other job's
    entry: str  # the entry of this try in its ready stream
    headers: Mapping[str, str]  # `traceparent`, where the producer sent one
    lost: threading.Event = field(compare=False)  # set when the lease was lost or the job given back: stop, somebody else may have it
    told: list[str | int] = field(compare=False, default_factory=list)  # what `limits` was given, as arguments
    waits_ms: list[int] = field(compare=False, default_factory=list)  # how long a refused caller is to wait, as `limits` has read
    unread: limits.Unread = field(compare=False, default_factory=limits.Unread)

    @property
    def traceparent(self) -> str | None:
        return self.headers.get("traceparent")

    def limits(self, headers: Mapping[str, str], budget: str | None = None) -> None:
        """Tell dripd what the headers of an API's answer say about its limits (x-ratelimit-remaining and such). They are about this bucket,
        or the budget that is named. What cannot be understood is logged once a minute, and counted (Drip.unread_headers)."""
        answer = limits.read(headers)
        self.told[:] = [part for limit in answer.limits for part in limit.args(budget)]
        self.waits_ms[:] = [answer.wait_ms]
        self.unread.add(answer.unread)


def check(run: object) -> None:
    """Work that only replies something to be awaited, or to be gone through, would be acknowledged without having run."""
    if not callable(run):
        raise TypeError(f"work needs a function that is called with each job, not {run!r}")
    inner: Any = run
    while isinstance(inner, partial):
        inner = inner.func
    for call in (inner, getattr(type(inner), "__call__", None)):
        if inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call) or inspect.isgeneratorfunction(call):
            raise TypeError(f"{run!r} would not run: work calls a plain function, and does not await; use asyncio.run inside of it")


def _has_not_run(reply: object) -> bool:
    return inspect.isawaitable(reply) or isinstance(reply, (AsyncIterator, Future, Iterator))


class _NotRun(TypeError):
    """The work replied something that has yet to run."""


class _Stopped(Exception):
    """A call that was repeated for as long as a stop allows."""


class Worker:
    """One `work`: its stop, and the job in its hand. Several may run in one process."""

    def __init__(self, redis: Any, streams: list[str], name: str, run: Callable[[Job], object], unread: limits.Unread) -> None:
        self._redis, self._streams, self._name, self._run, self._unread = redis, streams, name, run, unread
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()  # by a stop or the end of a job; a signal handler may put into it
        self._stopped_at: float | None = None
        self._logged: tuple[str, float] | None = None  # while Redis is away: why, and when that was logged
        timeout_s = redis.connection_pool.connection_kwargs.get("socket_timeout") or BLOCK_MS / 1000
        self._block_ms = min(BLOCK_MS if len(streams) == 1 else BLOCK_EACH_MS, max(1, int(500 * timeout_s)))

    def stop(self) -> None:
        if self._stopped_at is None:
            self._stopped_at = time.monotonic()
        self._woken.put(None)

    def _left_s(self, grace_s: float) -> float:
        """How long something may go on that has so much time after a stop."""
        return float("inf") if self._stopped_at is None else self._stopped_at + grace_s - time.monotonic()

    def work(self) -> None:
        try:
            for stream in self._streams:
                self._open(stream)
            for stream in itertools.cycle(self._streams):
                for entry, fields in self._take(stream):
                    self._one(stream, entry.decode(), fields)
                if self._stopped_at is not None:
                    return
        except _Stopped:
            return

    def _open(self, stream: str) -> None:
        self._again(0, self._redis.fcall, "drip__route", 1, stream, "")

    def _take(self, stream: str) -> list[tuple[bytes, Mapping[bytes, bytes]]]:
        try:
            reply = self._again(0, self._redis.xreadgroup, "workers", self._name, {stream: ">"}, count=1, block=self._block_ms)
        except Refused as why:
            if why.code not in ("NOGROUP", "UNBLOCKED"):
                raise
            self._open(stream)  # somebody deleted it
            return []
        return reply[0][1] if reply else []

    def _again(self, grace_s: float, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Repeat a call until Redis answers: whatever a worker says may be said twice. After a stop for so long and no longer."""
        for tries in itertools.count():
            try:
                reply = call(*args, **options)
            except DataError:
                raise
            except RedisError as why:
                refused = Refused(why)
                if not refused.passes():
                    raise refused from why
                if refused.code == "READONLY":  # after a failover the address may lead elsewhere
                    self._redis.connection_pool.disconnect(inuse_connections=False)
                self._is_away(refused)
            else:
                self._is_back()
                return reply
            first_s, most_s = PAUSE_S
            pause_s = min(most_s, first_s * 2 ** min(tries, 10)) * random.uniform(0.5, 1)
            until = time.monotonic() + pause_s
            while (left_s := min(until - time.monotonic(), self._left_s(grace_s))) > 0:
                self._wait(left_s)
            if self._left_s(grace_s) <= 0:
                raise _Stopped

    def _wait(self, seconds: float) -> None:
        """Until that time is over, a job ends, or somebody says stop."""
        try:
            self._woken.get(timeout=max(0.0, seconds))
        except queue.Empty:
            pass

    def _is_away(self, why: Refused) -> None:
        if self._logged is None or why.code != self._logged[0] or time.monotonic() >= self._logged[1] + LOG_EVERY_S:
            self._logged = why.code, time.monotonic()
            hint = " (has a daemon been here?)" if "unction not found" in why.message else ""
            log.warning("worker %s waits, and tries again: %s%s", self._name, why, hint)

    def _is_back(self) -> None:
        if self._logged is not None:
            self._logged = None
            log.warning("worker %s goes on", self._name)

    def _one(self, stream: str, entry: str, fields: Mapping[bytes, bytes]) -> None:
        """One job: run it beside this thread, renew its lease meanwhile, and say how it ended."""
        try:
            job, third_s = _job(entry, fields, self._unread), int(fields[b"lease_ms"]) / 3000
        except Exception as why:  # an entry that is none: dripd buries it
            log.warning("entry %s of %s is no job: %r", entry, stream, why)
            return self._tell(stream, entry, ["drip_fail", "REASON", f"no job: {why!r}"])
        ended: list[BaseException | None] = []

        def body() -> None:
            try:
                reply = self._run(job)
                ended.append(_NotRun(f"the work replied {reply!r}, which has not run: work does not await") if _has_not_run(reply) else None)
                if hasattr(reply, "close") and ended[0] is not None:
                    reply.close()  # or Python warns of it, too
            except BaseException as why:
                ended.append(why)
            self._woken.put(None)

        threading.Thread(target=body, daemon=True).start()
        renew_at = time.monotonic() + third_s
        while not ended:
            now = time.monotonic()
            if self._left_s(GRACE_S) <= 0:
                job.lost.set()
                log.warning("job %s of bucket %s goes on after a stop: it is given back", job.id, job.bucket)
                return self._tell(stream, entry, ["drip_fail", "RETRY_IN", 0, "KEEP", "REASON", "worker stopped"])
            if now >= renew_at:
                renew_at = now + (third_s if self._renew(stream, job) else min(third_s, 1.0))
            self._wait(min(renew_at - now, self._left_s(GRACE_S)))
        outcome = ended[0]
        _log_failure(job, outcome)
        if isinstance(outcome, _NotRun):
            self._tell(stream, entry, ["drip_fail", "RETRY_IN", 0, "KEEP", "REASON", str(outcome)])
            raise TypeError(str(outcome))
        ways: list[list[Any]] = [["drip_ack"] if outcome is None else ["drip_fail", "REASON", _reason(outcome)]]
        try:
            how = _how(outcome, job)
            ways = [[*how, *job.told], how, *ways]
        except (ValueError, TypeError, OverflowError) as wrong:
            log.warning("job %s of bucket %s raised a %s that means nothing: %s", job.id, job.bucket, type(outcome).__name__, wrong)
        self._tell(stream, entry, *ways)

    def _renew(self, stream: str, job: Job) -> bool:
        """Renew the lease. Replies whether Redis answered."""
        try:
            if not self._redis.xclaim(stream, "workers", self._name, 0, [job.entry], justid=True):
                job.lost.set()
            return True
        except RedisError as why:
            refused = Refused(why)
            if refused.code == "NOGROUP":  # somebody deleted the stream
                job.lost.set()
            self._is_away(refused)
            return False

    def _tell(self, stream: str, entry: str, *ways: list[Any]) -> None:
        """Tell dripd how a job ended: in the first of these ways that is not refused. No such budget may be above its bucket."""
        for number, (function, *args) in enumerate(ways, 1):
            try:
                self._again(GRACE_S + LAST_WORDS_S, self._redis.fcall, function, 1, stream, entry, *args)
                return
            except (Refused, DataError, UnicodeError) as why:
                if number == len(ways):
                    raise
                if args != ways[number][1:]:
                    log.warning("what is said of job %s is refused, so less is said: %s", entry, why)
            except _Stopped:
                log.warning("cannot tell how job %s ended, so it comes again", entry)
                raise


def _log_failure(job: Job, why: BaseException | None) -> None:
    if why is not None:
        is_meant = isinstance(why, (Dead, RetryIn, Throttled))  # else somebody looks for the line that raised it
        said = (job.id, job.bucket, job.attempt, type(why).__name__, _reason(why).decode())
        log.warning("job %s of bucket %s, try %d: %s: %s", *said, exc_info=None if is_meant else why)


def _reason(why: BaseException) -> bytes:
    try:
        text = str(why) or repr(why)
    except Exception:  # even that may fail
        text = type(why).__name__
    return text.encode(errors="backslashreplace")


def _how(why: BaseException | None, job: Job) -> list[Any]:
    """The function that is called for how a job ended, and its arguments."""
    if why is None:
        return ["drip_ack"]
    reason = ["REASON", _reason(why)]
    if isinstance(why, Throttled):
        ms = int(why.retry_after_ms) if why.retry_after_ms > 0 else sum(job.waits_ms)
        return ["drip_fail", "THROTTLED", *(["RETRY_AFTER", ms] if ms > 0 else []), *(["IN", why.budget] if why.budget else []), *reason]
    if isinstance(why, Dead):
        return ["drip_fail", "DEAD", *reason]
    if isinstance(why, RetryIn):
        return ["drip_fail", "RETRY_IN", int(why.ms), *reason]
    return ["drip_fail", *reason]


def _job(entry: str, fields: Mapping[bytes, bytes], unread: limits.Unread) -> Job:
    bucket, first = fields[b"bucket"], fields.get(b"id", entry.encode()).decode(errors="replace")
    headers = {key[2:].decode(errors="replace"): value.decode(errors="replace") for key, value in fields.items() if key.startswith(b"h:")}
    identity = f"{first}-{hashlib.sha256(bucket).hexdigest()[:16]}"
    return Job(bucket.decode(), fields[b"job"], int(fields[b"attempt"]), identity, entry, headers, threading.Event(), unread=unread)
