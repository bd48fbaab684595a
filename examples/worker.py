#!/usr/bin/env python3
"""Take jobs as they drip out of their buckets, run each, acknowledge it: worker.py [NAME]"""

import os
import signal
import socket
import sys

from redis import ConnectionPool, Redis
from redis.connection import parse_url


def run(bucket, job, identity):
    """Your work goes here, in bytes. Raise, and the job comes again later, through its bucket.
    A job may come twice: `identity` is the same on every attempt, remember it to do the work once."""
    sys.stdout.buffer.write(b"%b %b\n" % (bucket, job))
    sys.stdout.buffer.flush()


def stop(*_):
    global stopping  # the job in hand is finished first; an idle wait ends within 2 s
    stopping = True


stopping, taken, limit = False, 0, int(os.environ.get("MAX_JOBS", -1))
signal.signal(signal.SIGTERM, stop)
name = sys.argv[1] if len(sys.argv) > 1 else socket.gethostname()
url = os.environ.get("REDIS_URL", "redis://127.0.0.1:7379")
# A job is bytes, and the loop reads RESP2: so it is, whatever the options of the address say.
redis = Redis(connection_pool=ConnectionPool(**{**parse_url(url), "protocol": 2, "decode_responses": False}))

# It waits for 2 s and no longer: the client gives up on a connection that is silent for 5 s.
while not stopping and taken != limit:
    for _, [(entry, fields)] in redis.xreadgroup("workers", name, {"drip:ready": ">"}, count=1, block=2000):
        taken += 1
        try:
            run(fields[b"bucket"], fields[b"job"], fields.get(b"id", entry))
        except Exception as why:
            redis.fcall("drip_fail", 1, "drip:ready", entry, "REASON", repr(why))
        else:
            redis.xack("drip:ready", "workers", entry)
