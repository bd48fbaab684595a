#!/usr/bin/env python3
"""Submit prompts, one a line, with the tokens that they may take: submit.py MODEL TEAM < prompts
What waited for too long goes to another model: submit.py --expired (it runs until it is stopped)"""

import json
import os
import sys
from collections import Counter

from redis import ConnectionPool, Redis
from redis.connection import parse_url

MOST_TOKENS = int(os.environ.get("LLM_MAX_TOKENS", 300))  # of an answer
FALLBACK = dict(pair.split("=") for pair in os.environ.get("LLM_FALLBACK", "large=small").split(",") if pair)
URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:7379")
# Replies are bytes, and read as RESP2: so they are, whatever the options of the address say.
redis = Redis(connection_pool=ConnectionPool(**{**parse_url(URL), "protocol": 2, "decode_responses": False}))


def estimate(request):
    """How many tokens a request may take: four bytes of a prompt are about one. The worker puts it right when it knows."""
    text = sum(len(message["content"].encode()) for message in request["messages"])
    return min(100_000, text // 4 + 1 + request["max_tokens"])


def submit(model, team, job, name=None):
    """Replies the model that has the job, and the verdict. With a name a second submit of the same job changes nothing."""
    options = ["ID", name] if name else []
    reply = redis.fcall("drip_submit", 1, f"drip:queue:llm:{model}:{team}", job, "COST", estimate(json.loads(job)), *options)
    verdict = reply[5].decode()
    if verdict in ("late", "full") and model in FALLBACK:  # as things stand it would wait for too long
        return submit(FALLBACK[model], team, job, name)
    return model, verdict


def expired():
    """Jobs whose time was over while they waited are in drip:rejected. A group of its own remembers how far this got."""
    try:
        redis.xgroup_create("drip:rejected", "fallback", id="0", mkstream=True)
    except Exception as why:
        if "BUSYGROUP" not in str(why):
            raise
    last = "0"  # first what an earlier run took and did not finish, then what is new
    while True:
        streams = redis.xreadgroup("fallback", "one", {"drip:rejected": last}, count=100, block=2000)
        entries = [entry for _, found in streams for entry in found]
        if not entries:
            last = ">"
        for entry, fields in entries:
            last = entry if last != ">" else last
            if fields and fields[b"reason"] == b"expired" and fields[b"bucket"].startswith(b"llm:"):
                again(entry.decode(), fields)
            redis.xack("drip:rejected", "fallback", entry)


def again(entry, fields):
    _, model, team = fields[b"bucket"].decode().split(":", 2)
    if b"job" not in fields or b"bytes" in fields:  # many expired at once, or one over 4 KiB, of which only its head is kept
        print(f"lost: {fields.get(b'count', b'1').decode()} of {model}:{team}", file=sys.stderr, flush=True)
    elif model in FALLBACK:
        model, verdict = submit(FALLBACK[model], team, fields[b"job"], f"expired-{entry}")
        print(f"{team}: {verdict} at {model}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--expired"]:
        expired()
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    done = Counter()
    for line in filter(None, map(str.strip, sys.stdin)):
        request = {"messages": [{"role": "user", "content": line}], "max_tokens": MOST_TOKENS}
        done[submit(sys.argv[1], sys.argv[2], json.dumps(request))] += 1
    for (model, verdict), count in sorted(done.items()):
        print(f"{count} {verdict} at {model}")
    sys.exit(0 if all(verdict == "queued" for _, verdict in done) else 75)  # 75: EX_TEMPFAIL, try again later
