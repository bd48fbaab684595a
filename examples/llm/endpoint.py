#!/usr/bin/env python3
"""A small endpoint to try the worker with: it speaks as an OpenAI-compatible one does, and has limits: endpoint.py [PORT]

It allows each model LLM_RPM requests and LLM_TPM tokens a minute (600 and 60,000), in any slice of LLM_SLICE seconds (10) its part of that, and
answers 429 with `retry-after-ms` to what is more. `GET /figures` tells what it saw."""

import json
import os
import sys
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SLICE_S = int(os.environ.get("LLM_SLICE", 10))
REQUESTS, TOKENS = int(os.environ.get("LLM_RPM", 600)) * SLICE_S / 60, int(os.environ.get("LLM_TPM", 60_000)) * SLICE_S / 60
lock, seen = threading.Lock(), {}


def tokens_of(request):
    """What a request takes: its prompt, and an answer of a half to all of what it may have."""
    prompt = sum(len(message["content"].encode()) for message in request["messages"])
    least = request["max_tokens"] // 2
    return prompt // 4 + 1 + least + prompt % (least + 1)


def judge(model, tokens):
    """Let a request in, or not. Replies for how long it must wait; 0: it is in."""
    now = time.monotonic()
    with lock:
        of = seen.setdefault(model, {"last": deque(), "answered": 0, "refused": 0, "tokens": 0, "most_requests": 0, "most_tokens": 0})
        last = of["last"]
        while last and last[0][0] <= now - SLICE_S:
            last.popleft()
        requests, taken = len(last) + 1, sum(took for _, took in last) + tokens
        if requests > REQUESTS or taken > TOKENS:
            of["refused"] += 1
            return last[0][0] + SLICE_S - now if last else SLICE_S
        last.append((now, tokens))
        of["answered"] += 1
        of["tokens"] += tokens
        of["most_requests"], of["most_tokens"] = max(of["most_requests"], requests), max(of["most_tokens"], taken)
        return 0


class Endpoint(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, code, body, headers=()):
        text = json.dumps(body).encode()
        self.send_response(code)
        for name, value in [("Content-Type", "application/json"), ("Content-Length", str(len(text))), *headers]:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self):
        with lock:
            self.reply(200, {model: {key: n for key, n in of.items() if key != "last"} for model, of in seen.items()})

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        tokens = tokens_of(request)
        wait = judge(request["model"], tokens)
        if wait:
            error = {"error": {"type": "rate_limit_error", "message": "too many requests or tokens"}}
            return self.reply(429, error, [("retry-after-ms", str(int(wait * 1000) + 1))])
        answer = {"message": {"role": "assistant", "content": "well said"}}
        self.reply(200, {"model": request["model"], "choices": [answer], "usage": {"total_tokens": tokens}})


class Server(ThreadingHTTPServer):
    request_queue_size = 128


if __name__ == "__main__":
    server = Server(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 8090), Endpoint)
    print(f"serving on 127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
