#!/usr/bin/env python3
"""Celery on Redis: one task type a bucket, each with a rate_limit, and one worker process, which is this one."""

import argparse
import json
import os
import signal
import sys
import threading
import time
import warnings

# This file is named like the package, which is not to be looked for beside it.
here = os.path.dirname(os.path.abspath(__file__))
sys.path = [path for path in sys.path if os.path.abspath(path) != here]


def die(message):
    """End with one line on stderr: the bench must not take it for a run."""
    print(f"celery.py: {message}", file=sys.stderr)
    sys.exit(1)


try:
    import celery
    import redis
    from celery.platforms import SecurityWarning
except ImportError as error:
    die(f"{error}: run setup.sh first, and this with .venv/bin/python")


def work():
    """The work: B buckets of J jobs, one job every I microseconds a bucket, for S seconds at most."""

    def positive(text):
        if int(text) < 1:
            raise ValueError
        return int(text)

    parser = argparse.ArgumentParser()
    for name in ("--buckets", "--interval-us", "--jobs", "--seconds"):
        parser.add_argument(name, type=positive, required=True)
    parser.add_argument("--mode", help="ignored: there is one")
    return parser.parse_args()


def emptied(url):
    """The bench's Redis, emptied. One that is not there is the end, not something to wait for."""
    store = redis.Redis.from_url(url)
    try:
        store.flushall()
    except redis.RedisError as error:
        die(f"redis: {error}")
    return store


def configured(url, buckets):
    """The application. Nothing runs beside the tasks: no results, events, remote control or heartbeats."""
    app = celery.Celery("peers", broker=url)
    app.conf.update(
        task_ignore_result=True,
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        broker_connection_retry_on_startup=False,
        # A task that its rate limit holds back keeps its place among the prefetched ones. With one place a bucket no bucket
        # waits for another; with more the worker sets a timer for each task held back, and is slower and later.
        worker_prefetch_multiplier=buckets,
    )
    return app


def queue(tasks, jobs):
    """Queue every bucket's first job, then every bucket's second, and so on. Returns the microseconds that it took."""
    began = time.perf_counter_ns()
    with tasks[0].app.producer_pool.acquire(block=True) as producer:
        for place in range(jobs):
            job = str(place).ljust(100, ".")
            for task in tasks:
                task.apply_async((job,), producer=producer)
    return (time.perf_counter_ns() - began) // 1000


def report(given, queued_us, events):
    """Print the run. Jobs out of their order are the peer's affair, and worth a line on stderr."""
    rate = 1e6 / given.interval_us
    note = f"one task type a bucket, rate_limit {rate:g}/s, one worker process with one thread, prefetch one a bucket"
    lines = [json.dumps({"peer": "celery", "version": celery.__version__, "note": note})]
    lines.append(json.dumps({"queued_us": queued_us}))
    expected = [0] * given.buckets
    astray = 0
    for bucket, job, at in events:
        place = int(job.rstrip("."))
        astray += place != expected[bucket]
        expected[bucket] = place + 1
        lines.append(f"{bucket} {at}")
    if len(events) < given.buckets * given.jobs:
        print(f"{len(events)} of {given.buckets * given.jobs} jobs handled", file=sys.stderr)
    if astray:
        print(f"{astray} jobs handled out of their bucket's order", file=sys.stderr)
    print("\n".join(lines), flush=True)


def main():
    given = work()
    warnings.simplefilter("ignore", SecurityWarning)  # about running as root, which a container's user is
    url = os.environ.get("REDIS_URL") or die("REDIS_URL is not set")
    store = emptied(url)
    app = configured(url, given.buckets)
    events = []
    started, done = threading.Event(), threading.Event()

    def task(bucket):
        def handle(job):
            events.append((bucket, job, time.time_ns() // 1000))
            if len(events) == given.buckets * given.jobs:
                done.set()

        return app.task(handle, name=f"bucket-{bucket}", rate_limit=1e6 / given.interval_us)

    queued_us = queue([task(bucket) for bucket in range(given.buckets)], given.jobs)

    # The worker has the main thread and would wait for its tasks at the end: another thread ends the process instead.
    def finish():
        started.wait()
        done.wait(given.seconds)
        report(given, queued_us, events[:])
        store.flushall()
        os._exit(0)

    # Nor does a signal wait for them, as the worker's own handlers would.
    @celery.signals.worker_ready.connect(weak=False)
    def ready(**_):
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        started.set()

    threading.Thread(target=finish, daemon=True).start()
    worker = app.Worker(
        pool="threads",
        concurrency=1,
        loglevel="ERROR",
        quiet=True,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    )
    worker.start()
    os._exit(worker.exitcode or 1)  # it ended before its time


main()
