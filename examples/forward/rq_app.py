#!/usr/bin/env python3
"""RQ behind a bucket.

RQ keeps a job in a key of its own, and a queue holds only the ids. So the job is stored, and its id goes into the bucket.
dripd moves the id on into the queue `default`, and a worker finds it there as ever.

producer   rq_app.py rq:acme 100
worker     rq worker --url "$REDIS_URL" default
"""

import os
import sys

from redis import Redis
from rq import Queue


def send(number):
    print(f"sent {number}", flush=True)


if __name__ == "__main__":
    from rq_app import send  # the worker must find it under the name of this module

    bucket, count = sys.argv[1], int(sys.argv[2])
    redis = Redis.from_url(os.environ.get("REDIS_URL", "redis://127.0.0.1:7379"))
    queue = Queue("default", connection=redis)
    for number in range(count):
        job = queue.create_job(send, args=[number])
        job.save()
        redis.lpush(f"drip:queue:{bucket}", job.id)
