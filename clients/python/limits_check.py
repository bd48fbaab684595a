"""Does dripd.limits read each form as ../limit-headers.json says? A check of this client."""

import json
import logging
import pathlib
import sys
from dataclasses import astuple
from email.message import Message

from dripd import limits

table = json.loads(pathlib.Path(sys.argv[1]).read_text())
for case in table["cases"]:
    headers = Message()  # which may have a header twice
    for name, value in case["headers"]:
        headers.add_header(name, value)
    answer = limits.read(headers, case.get("now_ms", table["now_ms"]))
    now_ms = case.get("now_ms", table["now_ms"])
    times = [one for one in answer.limits if one.resets_at_ms is not None]
    at = [int(one.args(None)[3]) for one in times]
    assert all(ms == now_ms + one.reset_ms or one.reset_ms == 0 and 1e11 <= ms < now_ms for ms, one in zip(at, times)), case["name"]
    got = [[list(astuple(one))[:4] for one in answer.limits], len(times), answer.wait_ms, sorted(answer.unread)]
    expected = [case.get("limits", []), case.get("times", 0), case.get("wait", 0), case.get("unread", [])]
    assert got == expected, f"{case['name']}: {got}, expected {expected}"

lines: list[str] = []
handler = logging.Handler()
handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
logging.getLogger("dripd").addHandler(handler)
unread, clock = limits.Unread(), 0.0
limits.time.monotonic = lambda: clock
for clock in (0.0, 1.0, 59.0, 60.0, 61.0):
    unread.add(["x-ratelimit-reset: soon", "x-ratelimit-remaining: many"])
    unread.add([])
said = "a header about a limit cannot be understood: it is passed over (%d times): x-ratelimit-reset: soon"
assert (unread.count, lines) == (10, [said % 2, said % 6]), lines
print(f"{len(table['cases'])} cases")
