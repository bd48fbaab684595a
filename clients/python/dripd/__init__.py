"""Push jobs into the buckets of dripd, and work on them.

    from dripd import Drip
    drip = Drip("redis://127.0.0.1:7379")
    receipt = drip.push("sms:alice", b"hello")    # receipt.accepted is 1, or 0 where the bucket is full
    drip.work(lambda job: print(job.bucket, job.body))

It is a thin layer: everything is a call of a function in Redis, which docs/workers.md describes.
"""

from __future__ import annotations

import binascii
import hashlib
import itertools
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from redis import Redis
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.exceptions import ConnectionError, NoPermissionError, OutOfMemoryError, ResponseError, TimeoutError, TryAgainError
from redis.retry import Retry

from . import limits

__all__ = ["Dead", "Drip", "Job", "Receipt", "Refused", "RetryIn", "Submitted", "Throttled", "Unknown"]

BLOCK_MS = 2000  # shorter than the time after which the client gives up on a silent connection
BLOCK_EACH_MS = 100  # where a worker goes round several partitions
KNOWN = {OutOfMemoryError: "OOM", TryAgainError: "TRYAGAIN", NoPermissionError: "NOPERM"}
GRACE_S = 4.0  # how long the job in hand may go on after a stop


class Refused(Exception):
    """A function refused the call, and nothing was changed. `code` is BADBUCKET, BADARG, TOOLARGE, TOOMANY, WRONGTYPE, OOM or TRYAGAIN."""

    def __init__(self, why: ResponseError) -> None:
        code = next((code for kind, code in KNOWN.items() if isinstance(why, kind)), "")  # of these the client takes the code away
        super().__init__(f"{code} {why}".strip())
        self.code, _, self.message = str(self).partition(" ")


class Unknown(Exception):
    """The connection was lost during a push: it may have happened. It is never repeated for you."""


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
class Receipt:
    """What became of a push: of its jobs the first `accepted` went in."""

    accepted: int
    depth: int
    capacity: int
    retry_after_ms: int  # until one place is expected to be free; -1: all went in
    eta_ms: int  # until the last accepted job is due; -1: none went in


@dataclass(frozen=True)
class Submitted(Receipt):
    """What became of a job with options."""

    verdict: str  # queued, delayed, replaced, duplicate, full, late or gated
    id: str
    expected_ms: int
    by: str


@dataclass(frozen=True)
class Job:
    """A job as a worker gets it."""

    bucket: str
    body: bytes
    attempt: int  # 1 for the first try
    id: str  # the same in every try, and no other job's
    entry: str  # the entry of this try in its ready stream
    headers: Mapping[str, str]  # `traceparent`, where the producer sent one
    lost: threading.Event = field(compare=False)  # set when the lease was lost: stop, somebody else may have it
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


def _bytes(job: bytes | str) -> bytes:
    return job.encode() if isinstance(job, str) else job


class Drip:
    """Buckets of one dripd, under one prefix. It may be shared by threads. `partitions` and `partition_by` are those of its configuration."""

    def __init__(self, url: str = "redis://127.0.0.1:7379", prefix: str = "drip", partitions: int = 1, partition_by: int | None = None) -> None:
        self.prefix, self.partitions, self.partition_by = prefix, partitions, partition_by
        self._unread = limits.Unread()
        # A push whose outcome is not known is not repeated; what a worker says may be.
        self._once: Any = Redis.from_url(url, retry=Retry(NoBackoff(), 0))
        self._again: Any = Redis.from_url(url, retry=Retry(ExponentialBackoff(cap=1, base=0.05), 20))

    @property
    def unread_headers(self) -> int:
        """How many headers that `Job.limits` was given could not be understood."""
        return self._unread.count

    def _key(self, word: str, partition: int, name: str = "") -> str:
        tag = [f"{{{partition}}}"] if self.partitions > 1 else []
        return ":".join([self.prefix, word, *tag, *([name] if name else [])])

    def _queue(self, bucket: str) -> str:
        part = ":".join(bucket.split(":")[: self.partition_by])
        return self._key("queue", binascii.crc_hqx(part.encode(), 0) % self.partitions, bucket)

    def _call(self, name: str, bucket: str, *args: bytes | str | int) -> Any:
        try:
            return self._once.fcall(name, 1, self._queue(bucket), *args)
        except ResponseError as why:
            raise Refused(why) from why
        except (ConnectionError, TimeoutError) as why:
            raise Unknown(f"cannot tell whether {name} of {bucket} happened: {why}") from why

    def push(self, bucket: str, *jobs: bytes | str) -> Receipt:
        """Push 1 to 1,000 jobs; what does not fit is left out. A full bucket is no error: look at `accepted`."""
        return Receipt(*self._call("drip_push", bucket, *map(_bytes, jobs)))

    def submit(
        self, bucket: str, job: bytes | str, *, id: str | None = None, delay_ms: int | None = None, at_ms: int | None = None,
        ttl_ms: int | None = None, cost: int | None = None, headers: Mapping[str, str] | None = None, traceparent: str | None = None,
    ) -> Submitted:
        """Push one job with options. A `traceparent` is a header of that name."""
        options = {"ID": id, "DELAY": delay_ms, "AT": at_ms, "TTL": ttl_ms, "COST": cost}
        args: list[str | int] = [part for name, value in options.items() if value is not None for part in (name, value)]
        for name, value in {**(headers or {}), **({"traceparent": traceparent} if traceparent else {})}.items():
            args += ["HEADER", name, value]
        reply = self._call("drip_submit", bucket, _bytes(job), *args)
        values: list[Any] = [part.decode() if isinstance(part, bytes) else part for part in reply]
        return Submitted(*values)

    def work(self, run: Callable[[Job], object], route: str = "default", name: str | None = None, signals: bool = True) -> None:
        """Take jobs of a route and call `run` with each, one at a time, until TERM or INT, or `stop`. `run` returns when the job is done; it
        raises Dead, RetryIn, Throttled, or anything else when it failed. For more at a time start more workers."""
        self._told: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._stopping = False
        if signals:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: self.stop())
        streams = [self._key("ready", n, "" if route == "default" else route) for n in range(self.partitions)]
        name = name or f"{socket.gethostname()}-{os.getpid()}"
        for stream in streams:
            self._again.fcall("drip__route", 1, stream, "")
        block = BLOCK_MS if len(streams) == 1 else BLOCK_EACH_MS
        for stream in itertools.cycle(streams):
            if self._stopping:
                return
            reply = self._again.xreadgroup("workers", name, {stream: ">"}, count=1, block=block)
            for _, entries in reply.items() if isinstance(reply, dict) else reply or []:
                for entry, fields in entries[0] if isinstance(reply, dict) else entries:
                    self._one(stream, name, run, entry.decode(), fields)

    def stop(self) -> None:
        """End `work`: within 2 s where it waits, else after the job in hand, or after 4 s, when that is given back."""
        self._stopping = True
        self._told.put("stop")

    def _one(self, stream: str, name: str, run: Callable[[Job], object], entry: str, fields: Mapping[bytes, bytes]) -> None:
        """One job: run it beside this thread, renew its lease meanwhile, and say how it ended."""
        told = self._told
        ended: list[BaseException | None] = []
        try:
            job = _job(entry, fields, self._unread)
        except Exception as why:  # an entry that is none: dripd buries it
            return self._fail(stream, entry, "REASON", f"no job: {why!r}")

        def body() -> None:
            try:
                run(job)
                ended.append(None)
            except BaseException as why:
                ended.append(why)
            told.put(entry)

        threading.Thread(target=body, daemon=True).start()
        third, until = int(fields[b"lease_ms"]) / 3000, None
        while not ended:
            if self._stopping and until is None:
                until = time.monotonic() + GRACE_S
            try:
                told.get(timeout=third if until is None else max(0.0, min(third, until - time.monotonic())))
            except queue.Empty:
                if until is not None and time.monotonic() >= until:
                    return self._fail(stream, entry, "RETRY_IN", 0, "KEEP", "REASON", "worker stopped")
                if not self._again.xclaim(stream, "workers", name, 0, [entry], justid=True):
                    job.lost.set()
        if isinstance(ended[0], Throttled) and ended[0].retry_after_ms <= 0:
            ended[0].retry_after_ms = sum(job.waits_ms)
        try:
            self._say(stream, entry, ended[0], job.told)
        except ResponseError as why:  # no such budget is above the bucket: say it without what was told
            if not job.told or not str(why).startswith("BADARG"):
                raise
            self._say(stream, entry, ended[0], [])

    def _say(self, stream: str, entry: str, why: BaseException | None, told: list[str | int]) -> None:
        if why is None:
            self._again.fcall("drip_ack", 1, stream, entry, *told)
        elif isinstance(why, Throttled):
            after: list[str | int] = ["RETRY_AFTER", int(why.retry_after_ms)] if why.retry_after_ms > 0 else []
            self._fail(stream, entry, "THROTTLED", *after, *(["IN", why.budget] if why.budget else []), "REASON", str(why), *told)
        elif isinstance(why, Dead):
            self._fail(stream, entry, "DEAD", "REASON", str(why) or "dead", *told)
        elif isinstance(why, RetryIn):
            self._fail(stream, entry, "RETRY_IN", int(why.ms), "REASON", str(why), *told)
        else:
            self._fail(stream, entry, "REASON", str(why) or repr(why), *told)

    def _fail(self, stream: str, entry: str, *args: str | int) -> None:
        self._again.fcall("drip_fail", 1, stream, entry, *args)


def _job(entry: str, fields: Mapping[bytes, bytes], unread: limits.Unread) -> Job:
    bucket, first = fields[b"bucket"], fields.get(b"id", entry.encode()).decode()
    headers = {key[2:].decode(): value.decode() for key, value in fields.items() if key.startswith(b"h:")}
    identity = f"{first}-{hashlib.sha256(bucket).hexdigest()[:16]}"
    return Job(bucket.decode(), fields[b"job"], int(fields[b"attempt"]), identity, entry, headers, threading.Event(), unread=unread)
