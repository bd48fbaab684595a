#!/usr/bin/env python3
"""Take jobs of buckets llm:<model>:<team> and put each to an OpenAI-compatible endpoint: worker.py

LLM_BASE_URL   the endpoint, as in https://api.openai.com/v1      LLM_MODELS   its name of each model: large=gpt-5,small=gpt-5-mini
LLM_API_KEY    its key                                            LLM_SLOTS    how many requests run at a time, 8 unless given"""

import json
import os
import signal
import socket
import sys
import threading
import urllib.error
import urllib.request

from redis import ConnectionPool, Redis
from redis.connection import parse_url

BASE, KEY = os.environ["LLM_BASE_URL"].rstrip("/"), os.environ.get("LLM_API_KEY", "")
MODELS = dict(pair.split("=") for pair in os.environ.get("LLM_MODELS", "").split(",") if pair)
SLOTS = int(os.environ.get("LLM_SLOTS", 8))
GIVE_UP_S = 60  # an endpoint that is silent for so long; shorter than the lease
READY = "drip:ready"
URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:7379")
# Replies are bytes, and read as RESP2: so they are, whatever the options of the address say.
redis = Redis(connection_pool=ConnectionPool(**{**parse_url(URL), "protocol": 2, "decode_responses": False}))
stopping = threading.Event()


def answered(bucket, identity, text):
    """Your work goes here. A job may come twice: `identity` is the same on every attempt, remember it to do the work once."""
    print(f"{bucket} {identity} {text}", flush=True)


def ask(model, job):
    """Put a job to the endpoint. Replies its answer."""
    body = json.dumps({**json.loads(job), "model": MODELS.get(model, model)}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    request = urllib.request.Request(f"{BASE}/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=GIVE_UP_S) as answer:
        return json.load(answer)


def wait_ms(headers):
    """How long the endpoint wants to be left alone; 0 where it does not say. A date in `retry-after` is not understood here."""
    for name, ms in (("retry-after-ms", 1), ("retry-after", 1000)):
        try:
            return max(0, int(float(headers[name]) * ms))
        except (TypeError, ValueError):
            continue
    return 0


def refused(entry, model, why):
    """The endpoint answered with an error: too fast, try again later, or never."""
    reason = f"HTTP {why.code}"
    if why.code in (429, 503):
        after = wait_ms(why.headers)
        told = ["RETRY_AFTER", after] if after else []
        redis.fcall("drip_fail", 1, READY, entry, "THROTTLED", *told, "IN", f"llm:{model}", "REASON", reason)
    elif why.code in (408, 409, 425) or why.code >= 500:
        redis.fcall("drip_fail", 1, READY, entry, "REASON", reason)
    else:
        redis.fcall("drip_fail", 1, READY, entry, "DEAD", "REASON", f"{reason} {why.read(200)!r}")


def run(entry, fields):
    bucket = fields[b"bucket"].decode()
    model = bucket.split(":")[1]
    try:
        reply = ask(model, fields[b"job"])
        answered(bucket, fields.get(b"id", entry).decode(), reply["choices"][0]["message"]["content"])
    except urllib.error.HTTPError as why:
        return refused(entry, model, why)
    except Exception as why:  # no answer, or one that is none: it comes again, through its bucket
        return redis.fcall("drip_fail", 1, READY, entry, "REASON", repr(why))
    # It was charged an estimate. What it really took moves the dues of its bucket, its model and the organisation.
    took = reply.get("usage", {}).get("total_tokens")
    redis.fcall("drip_ack", 1, READY, entry, *(["COST", took] if took else []))


def slot(name):
    """Take a job, run it, and the next one. A slot has one job at a time: the lease of every job taken starts at once."""
    while not stopping.is_set():
        for _, entries in redis.xreadgroup("workers", name, {READY: ">"}, count=1, block=2000):
            for entry, fields in entries:
                run(entry, fields)


def fatal(args):
    """A slot that loses Redis ends the worker; what starts it again, as systemd does, finds the jobs when their leases are over."""
    print(f"worker.py: {args.exc_value!r}", file=sys.stderr, flush=True)
    os._exit(1)


if __name__ == "__main__":
    threading.excepthook = fatal
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())  # the jobs in hand are finished first
    slots = [threading.Thread(target=slot, args=[f"{socket.gethostname()}-{os.getpid()}-{n}"]) for n in range(SLOTS)]
    for one in slots:
        one.start()
    for one in slots:
        one.join()
