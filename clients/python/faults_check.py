"""What once lost jobs, or hung: each check of this client is a function here. faults_check.py NAME, with a dripd at $REDIS_URL."""

import asyncio
import functools
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dripd import Dead, Drip, Job, Refused, RetryIn, Throttled, Unknown
from redis import Redis

URL = os.environ["REDIS_URL"]
redis: Any = Redis.from_url(URL)
drip = Drip(URL)


def pending() -> int:
    return int(redis.xpending("drip:ready", "workers")["pending"])


def not_run() -> None:
    """Work that only replies something to be awaited or gone through is a TypeError, and its job goes to the next worker as a first try."""

    async def later(job: Job) -> None: ...

    async def each(job: Job) -> Any:
        yield 1

    def some(job: Job) -> Any:
        yield 1

    class Later:
        async def __call__(self, job: Job) -> None: ...

        async def method(self, job: Job) -> None: ...

    def logged(inner: Any) -> Any:
        return functools.wraps(inner)(lambda job: inner(job))

    seen: list[Any] = [later, each, some, Later(), Later().method, functools.partial(later), functools.partial(Later()), None, "later"]
    for work in seen:
        refuses(TypeError, lambda: drip.work(work, signals=False))
    threads = ThreadPoolExecutor(1)
    unseen: list[Any] = [
        logged(later), logged(each), lambda job: later(job), lambda job: some(job), lambda job: Later()(job), lambda job: threads.submit(print, end=""),
        functools.partial(lambda work, job: work(job), later),
    ]
    for number, work in enumerate(unseen):
        drip.push(f"late-{number}", b"x")
        refuses(TypeError, lambda: drip.work(work, signals=False))
        tries: list[Any] = []

        def run(job: Job) -> None:
            tries.append((job.bucket, job.attempt))
            drip.stop()

        drip.work(run, signals=False)
        assert tries == [(f"late-{number}", 1)], tries
    drip.push("now", b"x")
    drip.work(lambda job: drip.stop(), signals=False)
    drip.push("now", b"x")

    @logged
    def sync(job: Job) -> None:
        asyncio.run(later(job))
        drip.stop()

    drip.work(sync, signals=False)
    assert pending() == 0
    print(f"{len(seen)} are seen at once, {len(unseen)} when they reply")


def refuses(kind: type[Exception], call: Callable[[], object]) -> Any:
    try:
        call()
    except kind as why:
        return why
    raise AssertionError(f"no {kind.__name__}")


def threads() -> None:
    """Threads that share a Drip acknowledge a job when it is done: a third of its lease is 20 s."""
    done = threading.Semaphore(0)

    def run(job: Job) -> None:
        time.sleep(0.02)
        done.release()

    drip.push("shared", *[b"x"] * 40)
    workers = [threading.Thread(target=lambda: drip.work(run, signals=False)) for _ in range(5)]
    began = time.monotonic()
    for worker in workers:
        worker.start()
    for _ in range(40):
        done.acquire()
    while pending():
        assert time.monotonic() - began < 15, f"{pending()} jobs are done and not acknowledged"
        time.sleep(0.02)
    drip.stop()
    for worker in workers:
        worker.join()
    print("40 acknowledged")


def bytes_always() -> None:
    """Whatever the options of the address are, a job is bytes."""
    for options in ("decode_responses=true", "protocol=3", "protocol=3&decode_responses=true", "encoding=latin-1", "socket_timeout=1"):
        drip, got = Drip(f"{URL}/0?{options}"), []

        def run(job: Job) -> None:
            got.append((job.bucket, job.body, job.traceparent))
            drip.stop()

        assert drip.submit("ü", b"\xff\x00", traceparent="t").verdict == "queued"
        drip.work(run, signals=False)
        assert got == [("ü", b"\xff\x00", "t")], (options, got)
    print("bytes")


def logs() -> None:
    """What fails is logged, and nothing that is raised ends the worker with its job in hand."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("dripd").addHandler(handler)

    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError

    wrong: Any = "soon"
    raised = [
        ValueError("wrong"), Dead("no use"), RetryIn(60_000, "busy"), Throttled(60_000), Mute(), ValueError("\udcff"), SystemExit(1),
        RetryIn(wrong), RetryIn(-1), Throttled(5, "no budget"), Throttled(wrong),
    ]
    for number, why in enumerate(raised):

        def run(job: Job) -> None:
            drip.stop()
            raise why

        drip.push(f"failed-{number}", b"secret")
        drip.work(run, signals=False)
        said = [line for line in lines if f"of bucket failed-{number}, try 1: {type(why).__name__}: " in line]
        assert len(said) == 1, (number, lines)
    assert pending() == 0 and not any("secret" in line for line in lines)
    assert lines[0].endswith(": wrong") and lines[1].endswith(": no use"), lines
    print(f"{len(raised)} logged")


ANSWERS = [
    "ERR Function not found", "READONLY You can't write against a read only replica.", "MASTERDOWN Link with MASTER is down", "LOADING Redis is loading",
    "NOAUTH Authentication required.", "NOPERM this user has no permissions", "WRONGPASS invalid username-password pair or user is disabled.",
    "OOM command not allowed", "TRYAGAIN Multiple keys", "MOVED 1 127.0.0.1:1", "CLUSTERDOWN Hash slot not served", "NOREPLICAS Not enough good replicas",
    "MISCONF Redis is configured", "BUSY Redis is busy", "ERR max number of clients reached", "BADBUCKET no bucket", "WRONGTYPE Operation against",
]


def codes() -> None:
    """What Redis refuses says why, by its code, and is not Unknown; what was never sent is not either."""
    for answer in ANSWERS:
        why = refuses(Refused, lambda: Drip(says(answer)).push("a", b"x"))
        assert (why.code, str(why)) == (answer.split()[0], answer), why
    for url in ("redis://127.0.0.1:1", "redis://no.such.host.invalid", "unix:///no/such/socket"):
        assert refuses(Refused, lambda: Drip(url).push("a", b"x")).code == "AWAY"
    assert refuses(Refused, lambda: Drip(URL.replace("//", "//user:wrong@")).push("a", b"x")).code == "WRONGPASS"
    refuses(Unknown, lambda: Drip(says(None)).push("a", b"x"))
    print(f"{len(ANSWERS)} codes")


def says(answer: str | None) -> str:
    """A server that answers each call of a function with this error, or hangs up."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve(lines: Any) -> None:
        while head := lines.readline():
            words = [(lines.readline(), lines.readline())[1].strip() for _ in range(int(head[1:]))]
            if words[0] == b"FCALL" and answer is None:
                return
            lines.write(b"-%b\r\n" % answer.encode() if words[0] == b"FCALL" and answer else b"+OK\r\n")
            lines.flush()

    def accept() -> None:
        while True:
            with server.accept()[0] as connection, connection.makefile("rwb") as lines:
                serve(lines)

    threading.Thread(target=accept, daemon=True).start()
    return f"redis://127.0.0.1:{server.getsockname()[1]}"


globals()[sys.argv[1]]()
