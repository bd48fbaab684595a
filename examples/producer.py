#!/usr/bin/env python3
"""Put jobs into a bucket: producer.py [--atomic] BUCKET JOB..."""

import argparse
import os
import sys

from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--atomic", action="store_true", help="push with drip_push, which takes only what fits")
parser.add_argument("bucket", type=os.fsencode)
parser.add_argument("jobs", metavar="job", nargs="+", type=os.fsencode)
args = parser.parse_args()

queue = b"drip:queue:" + args.bucket
# No retry: a push whose outcome is unknown may have happened, and repeating it would push the jobs twice.
redis = Redis.from_url(os.environ.get("REDIS_URL", "redis://127.0.0.1:7379"), retry=Retry(NoBackoff(), 0))

if args.atomic:
    accepted, depth, capacity, retry_after_ms, eta_ms = redis.fcall("drip_push", 1, queue, *args.jobs)
    rejected = len(args.jobs) - accepted
else:
    # Asked before the push, so that a Redis without dripd is refused with nothing pushed.
    _, depth, capacity, retry_after_ms, eta_ms = redis.fcall_ro("drip_peek", 1, queue)
    length = redis.lpush(queue, *args.jobs)
    rejected = min(len(args.jobs), max(0, length - capacity))  # the newest of this push

print(f"accepted {len(args.jobs) - rejected} rejected {rejected}")
sys.exit(75 if rejected else 0)  # 75: EX_TEMPFAIL, try again later
