#!/usr/bin/env python3
"""Celery behind a bucket.

A message goes into the bucket instead of the queue: the name of the queue is the key of the bucket. dripd moves it on into
`celery`, and a worker finds it there as ever. A retry of Celery's goes through the bucket again.

producer   celery_app.py celery:acme 100
worker     celery -A celery_app worker
"""

import os
import sys

from celery import Celery

app = Celery("celery_app", broker=os.environ.get("REDIS_URL", "redis://127.0.0.1:7379"))


@app.task(ignore_result=True)
def send(number):
    print(f"sent {number}", flush=True)


if __name__ == "__main__":
    bucket, count = sys.argv[1], int(sys.argv[2])
    for number in range(count):
        send.apply_async([number], queue=f"drip:queue:{bucket}")
