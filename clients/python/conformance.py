"""The adapter of this client for ../conformance/run.py."""

import base64
import json
import os
import queue
import signal
import sys
import threading
import time
from dataclasses import astuple
from typing import Any

from dripd import Dead, Drip, Job, Receipt, Refused, RetryIn, Throttled, Unknown

drip, writing = Drip(os.environ["REDIS_URL"]), threading.Lock()
routes: queue.SimpleQueue[str] = queue.SimpleQueue()
seen: set[str] = set()
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # while it does not work


def tell(said: dict[str, Any]) -> None:
    with writing:
        print(json.dumps(said), flush=True)


def run(job: Job) -> None:
    tell({"job": base64.b64encode(job.body).decode(), "bucket": job.bucket, "attempt": job.attempt, "id": job.id, "traceparent": job.traceparent})
    word, _, rest = job.body.decode(errors="replace").partition(" ")
    is_first = job.id not in seen
    seen.add(job.id)
    if word == "fail":
        raise RuntimeError(rest)
    elif word == "dead":
        raise Dead(rest)
    elif word == "limits":
        job.limits({"X-RateLimit-Remaining": rest, "X-RateLimit-Reset": "60"})
    elif word == "refused" and is_first:
        job.limits({"Retry-After": rest})
        raise Throttled()
    elif word == "sleep":
        time.sleep(int(rest) / 1000)
    elif word == "retry" and is_first:
        raise RetryIn(int(rest))
    elif word == "throttle" and is_first:
        ms, _, budget = rest.partition(" ")
        raise Throttled(int(ms), budget or None)


def answer(op: dict[str, Any]) -> None:
    try:
        if op["op"] == "push":
            receipt: Receipt = drip.push(op["bucket"], *map(base64.b64decode, op["jobs"]))
        else:
            receipt = drip.submit(op["bucket"], base64.b64decode(op["job"]), **op["options"])
        tell({"receipt": astuple(receipt)})
    except Refused as why:
        tell({"refused": why.code})
    except Unknown:
        tell({"unknown": True})


def listen() -> None:
    for line in sys.stdin:
        op = json.loads(line)
        routes.put(op["route"]) if op["op"] == "work" else answer(op)


threading.Thread(target=listen, daemon=True).start()
drip.work(run, route=routes.get())
