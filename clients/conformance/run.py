#!/usr/bin/env python3
"""Does a client of dripd do what a client must? run.py REDIS-URL COMMAND...

COMMAND is the client's adapter, a program that reads commands and writes what came of them, a line of JSON each (README.md). It is started
anew for each case of cases.json. A dripd with the policies of dripd.toml must run on that Redis, and nobody else. Needs Python 3.10 alone.
Prints a line for each case, `ok`, `SKIPPED` or `FAILED`, and exits 1 where one failed.
"""

import base64
import json
import os
import pathlib
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse

PATIENCE_S = 20.0  # for what must come sooner or later
BUSY_S = 5.0  # what a busy machine may add to a time that an adapter must obey


class Wrong(Exception):
    """What a case found instead of what it expects."""


class Redis:
    """A connection that speaks RESP2: enough for a test, and nothing to install."""

    def __init__(self, url):
        at = urllib.parse.urlparse(url)
        self.lines = socket.create_connection((at.hostname or "127.0.0.1", at.port or 6379)).makefile("rwb")
        if at.password:
            self.call("AUTH", at.username or "default", at.password)

    def call(self, *words):
        parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.lines.write(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts))
        self.lines.flush()
        return self.reply()

    def reply(self):
        kind, rest = self.lines.read(1), self.lines.readline()[:-2]
        if kind == b"+":
            return rest
        if kind == b"-":
            return Wrong(rest.decode())
        if kind == b":":
            return int(rest)
        if int(rest) < 0:
            return None
        if kind == b"$":
            return self.lines.read(int(rest) + 2)[:-2]
        return [self.reply() for _ in range(int(rest))]


class Case:
    """A case that runs: an adapter of its own, and a word of its own for the names of its buckets."""

    def __init__(self, url, command, word):
        self.redis, self.word, self.last, self.events, self.answers = Redis(url), word, None, queue.Queue(), queue.Queue()
        self.adapter = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "REDIS_URL": url})
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        for line in self.adapter.stdout:
            said = json.loads(line)
            if "job" not in said:
                self.answers.put(said)
            elif self.word in said["bucket"]:  # what others have left behind is worked off and passed over
                self.events.put(said)

    def named(self, value):
        """A value of the table with this case's word in place of %."""
        if isinstance(value, str):
            return value.replace("%", self.word)
        if isinstance(value, list):
            return [self.named(one) for one in value]
        return value

    def bytes_of(self, job):
        if isinstance(job, dict):
            return base64.b64decode(job["base64"]) if "base64" in job else b"x" * job["bytes"]
        return job.encode()

    def ask(self, op, expect):
        self.adapter.stdin.write(json.dumps(op).encode() + b"\n")
        self.adapter.stdin.flush()
        answer = self.answers.get(timeout=PATIENCE_S)
        for key in ("receipt", "refused"):
            if key in expect and not like(answer.get(key), self.named(expect[key])):
                raise Wrong(f"{op['op']} answered {answer}, expected {self.named(expect[key])}")

    def step(self, step):
        kind = next(key for key in step if key not in ("receipt", "refused", "until"))
        getattr(self, "do_" + kind)(self.named(step[kind]), step)

    def do_push(self, args, step):
        bucket, jobs = args[0], []
        for job in args[1:]:
            jobs += [b"x"] * job["times"] if isinstance(job, dict) and "times" in job else [self.bytes_of(job)]
        self.ask({"op": "push", "bucket": bucket, "jobs": [base64.b64encode(job).decode() for job in jobs]}, step)

    def clients(self):
        lines = self.redis.call("CLIENT", "LIST").decode().splitlines()
        return [dict(word.partition("=")[::2] for word in line.split()) for line in lines]

    def do_push_lost(self, args, _):
        """The connection of a push is cut while Redis has not begun with it: the adapter must say that the outcome is unknown."""
        known = {client["id"] for client in self.clients()}  # one that comes later is a second try, and nobody stops that
        self.redis.call("CLIENT", "PAUSE", 60000, "WRITE")
        try:
            op = {"op": "push", "bucket": args[0], "jobs": [base64.b64encode(self.bytes_of(args[1])).decode()]}
            self.adapter.stdin.write(json.dumps(op).encode() + b"\n")
            self.adapter.stdin.flush()
            since = time.monotonic()
            while self.answers.empty() and time.monotonic() - since < PATIENCE_S:
                for client in self.clients():
                    if client["id"] in known and client["cmd"] == "fcall" and "b" in client["flags"]:  # a daemon's too; it comes back
                        self.redis.call("CLIENT", "KILL", "ID", client["id"])
                time.sleep(0.02)
        finally:
            self.redis.call("CLIENT", "UNPAUSE")
        answer = self.answers.get(timeout=PATIENCE_S)
        if answer != {"unknown": True}:
            raise Wrong(f"push answered {answer}, expected that the outcome is unknown")

    def do_submit(self, args, step):
        bucket, job, options = args
        job = base64.b64encode(self.bytes_of(job)).decode()
        self.ask({"op": "submit", "bucket": bucket, "job": job, "options": options}, step)

    def do_work(self, route, _):
        self.adapter.stdin.write(json.dumps({"op": "work", "route": route}).encode() + b"\n")
        self.adapter.stdin.flush()

    def do_job(self, args, _):
        event = self.events.get(timeout=PATIENCE_S)
        if args != "any":
            bucket, body, attempt, trace = args[0], self.bytes_of(args[1]), args[2], args[3] if len(args) > 3 else None
            got = event["bucket"], base64.b64decode(event["job"]), event["attempt"], event.get("traceparent")
            if got != (bucket, body, attempt, trace):
                raise Wrong(f"the worker got {got}, expected {(bucket, body, attempt, trace)}")
        self.last = event

    def do_same_job(self, args, step):
        before = self.last
        self.do_job(args, step)
        if self.last["id"] != before["id"]:
            raise Wrong(f"the job came as {self.last['id']}, and before as {before['id']}")

    def do_quiet(self, ms, _):
        try:
            raise Wrong(f"the worker got {self.events.get(timeout=ms / 1000)}, expected nothing for {ms} ms")
        except queue.Empty:
            pass

    def do_redis(self, words, step):
        self.until(words, lambda reply: like(reply, self.expected(step["until"])))

    def expected(self, value):
        return self.bytes_of(value) if isinstance(value, dict) else self.named(value)

    def until(self, words, is_so):
        since = time.monotonic()
        while not is_so(reply := self.redis.call(*words)):
            if time.monotonic() - since > PATIENCE_S:
                raise Wrong(f"{words} answers {reply}")
            time.sleep(0.02)

    def do_dead(self, args, _):
        wanted = [one.encode() for one in args]

        def is_there(entries):
            fields = [dict(zip(flat[::2], flat[1::2])) for _, flat in entries]
            return any([one[b"bucket"], one[b"attempt"], one[b"reason"]] == wanted for one in fields)

        self.until(["XREVRANGE", "drip:dead", "+", "-", "COUNT", "10"], is_there)

    def do_take(self, args, _):
        """A worker of the script's own takes the job: of this bucket, at this try, given back so often."""
        route, wanted = args[0], [one.encode() for one in args[1:]]
        stream = f"drip:ready:{route}"
        reply = self.redis.call("XREADGROUP", "GROUP", "workers", "run.py", "COUNT", 1, "BLOCK", int(PATIENCE_S * 1000), "STREAMS", stream, ">")
        entry, flat = reply[0][1][0]
        fields = dict(zip(flat[::2], flat[1::2]))
        self.redis.call("XACK", stream, "workers", entry)
        if [fields[b"bucket"], fields[b"attempt"], fields.get(b"kept", b"0")] != wanted:
            raise Wrong(f"the job came back as {fields}, expected {wanted}")

    def do_term(self, seconds, _):
        self.adapter.send_signal(signal.SIGTERM)
        try:
            code = self.adapter.wait(timeout=seconds + BUSY_S)
        except subprocess.TimeoutExpired:
            raise Wrong(f"the adapter does not end within {seconds} s of TERM, nor {BUSY_S:.0f} s later") from None
        if code != 0:
            raise Wrong(f"the adapter exited with {code} on TERM")

    def end(self, is_good):
        """Every case ends with a TERM, which an adapter that waits obeys within 3 s."""
        try:
            if is_good and self.adapter.poll() is None:
                self.do_term(5, None)
        finally:
            self.adapter.kill()
            self.adapter.wait()


def like(got, expect):
    if isinstance(expect, list):
        return isinstance(got, list) and len(got) == len(expect) and all(map(like, got, expect))
    if expect == "any":
        return not isinstance(got, Wrong)
    if expect in (">0", ">=0"):
        return isinstance(got, int) and (got > 0 or expect == ">=0" and got == 0)
    return got == (expect.encode() if isinstance(expect, str) and isinstance(got, bytes) else expect)


def run(url, command, case, word):
    running, is_good = Case(url, command, word), False
    try:
        for step in case["do"]:
            running.step(step)
        is_good = True
    except queue.Empty:
        raise Wrong("the adapter says nothing") from None
    finally:
        running.end(is_good)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    url, command, failed = sys.argv[1], sys.argv[2:], 0
    # A library that does not have a function refuses it by name; one that has it misses an argument.
    has_submit = "not found" not in str(Redis(url).call("FCALL", "drip_submit", 0)).lower()
    for number, case in enumerate(json.loads(pathlib.Path(__file__).with_name("cases.json").read_text()), 1):
        if case["name"].startswith("submit") and not has_submit:
            print(f"SKIPPED {number} {case['name']}: this dripd has no drip_submit", flush=True)
            continue
        try:
            run(url, command, case, f"{number}-{os.getpid()}")
            print(f"ok {number} {case['name']}", flush=True)
        except (Wrong, OSError, KeyError, TypeError) as why:
            failed += 1
            print(f"FAILED {number} {case['name']}: {why}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
