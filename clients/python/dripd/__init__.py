"""Push jobs into the buckets of dripd, and work on them.

    from dripd import Drip
    drip = Drip("redis://127.0.0.1:7379")
    receipt = drip.push("sms:alice", b"hello")    # receipt.accepted is 1, or 0 where the bucket is full
    drip.work(lambda job: print(job.bucket, job.body))

It is a thin layer: everything is a call of a function in Redis, which docs/workers.md describes.
"""

from __future__ import annotations

import binascii
import itertools
import os
import signal
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from redis.exceptions import DataError, RedisError

from . import limits
from ._redis import Refused, Unknown, connect, is_answer
from ._worker import Dead, Job, RetryIn, Throttled, Worker, check

__all__ = ["Dead", "Drip", "Job", "Receipt", "Refused", "RetryIn", "Submitted", "Throttled", "Unknown"]

_numbers = itertools.count(1)  # of the workers in this process


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


def _bytes(job: bytes | str) -> bytes:
    return job.encode() if isinstance(job, str) else job


class Drip:
    """Buckets of one dripd, under one prefix. It may be shared by threads. `partitions` and `partition_by` are those of its configuration."""

    def __init__(self, url: str = "redis://127.0.0.1:7379", prefix: str = "drip", partitions: int = 1, partition_by: int | None = None) -> None:
        self.prefix, self.partitions, self.partition_by = prefix, partitions, partition_by
        self._unread = limits.Unread()
        # A push whose outcome is not known is not repeated, and one that was never sent is told apart. What a worker says may be repeated.
        self._pushes: Any = connect(url, refuses=True)
        self._says: Any = connect(url)
        self._workers: list[Worker] = []

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
            return self._pushes.fcall(name, 1, self._queue(bucket), *args)
        except DataError:  # nothing that can be sent
            raise
        except RedisError as why:
            if is_answer(why):
                raise Refused(why) from why
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

    def work(self, run: Callable[[Job], None], route: str = "default", name: str | None = None, signals: bool = True) -> None:
        """Take jobs of a route and call `run` with each, one at a time, until TERM or INT, or `stop`. `run` returns when the job is done; it
        raises Dead, RetryIn, Throttled, or anything else when it failed, which is logged (`dripd`). It is a plain function: one that is
        `async`, or replies something to be awaited, is a TypeError. Where Redis or dripd is away, this waits. For more at a time start more
        workers, or several threads with `signals=False` that share one Drip."""
        check(run)
        streams = [self._key("ready", n, "" if route == "default" else route) for n in range(self.partitions)]
        name = name or f"{socket.gethostname()}-{os.getpid()}-{next(_numbers)}"
        worker = Worker(self._says, streams, name, run, self._unread)
        before = {}
        if signals:
            for number in (signal.SIGTERM, signal.SIGINT):
                before[number] = signal.signal(number, lambda *_: self.stop())
        self._workers.append(worker)
        try:
            worker.work()
        finally:
            self._workers.remove(worker)
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def stop(self) -> None:
        """End each `work` that runs: within 2 s where it waits, else after the job in hand, or after 4 s, when that is given back."""
        for worker in tuple(self._workers):
            worker.stop()
