"""How much more an API lets through, read from the headers of its answer.

`RateLimit` and `RateLimit-Policy` (IETF draft, structured fields), headers with a number each, whose names differ in one word
(X-RateLimit-Remaining, x-ratelimit-remaining-tokens, anthropic-ratelimit-requests-remaining), and Retry-After. ../../limit-headers.json has
what the readers of dripd make of each form.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from email.utils import format_datetime, parsedate_to_datetime
from typing import Any

import http_sf

MOST = 1_000_000_000  # jobs, or units of cost
MOST_MS = 86_400_000  # a longer one is asked for again after a day
REPORTS_MOST = 4
EPOCH_FROM, EPOCH_MS_FROM, EPOCH_MS_TO = 1e9, 1e11, 1e14  # such numbers are seconds, or milliseconds, since 1970
UNITS_MS = {"d": 86_400_000.0, "h": 3_600_000.0, "m": 60_000.0, "s": 1_000.0, "ms": 1.0, "us": 0.001}
NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
SPAN = re.compile(r"(?:pt)?((?:[0-9]+(?:\.[0-9]+)?(?:ms|us|d|h|m|s))+)")  # 6m0s, PT30S
RFC_3339 = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]((?:[01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?([Zz]|[+-][0-9]{2}:[0-9]{2})")
TEXT_MOST = 200  # of a header in the log
LOG_EVERY_S = 60.0


@dataclass(frozen=True)
class Limit:
    """So much more until the reset: jobs, or units of what they cost."""

    remaining: int
    reset_ms: int
    limit: int | None  # how much is let through after a reset, where that is said
    units: str  # job or cost
    resets_at_ms: int | None = None  # since 1970, where the other side said the time of its reset

    def args(self, budget: str | None) -> list[str | int]:
        """As arguments of drip_ack and drip_fail."""
        limit: list[str | int] = ["LIMIT", self.limit] if self.limit else []
        where: list[str | int] = ["IN", budget] if budget else []
        reset = self.reset_ms if self.resets_at_ms is None else self.resets_at_ms
        return ["REMAINING", self.remaining, "RESET", reset, *limit, "UNITS", self.units, *where]

    def rank(self) -> tuple[int, int]:
        """Of two limits the one with less left counts, or, of as much, the one that lasts longer."""
        return self.remaining, -self.reset_ms


@dataclass
class Answer:
    """What the headers of an answer say."""

    limits: list[Limit] = field(default_factory=list)
    wait_ms: int = 0  # how long a caller that was refused is to wait; 0: they do not say
    unread: list[str] = field(default_factory=list)  # headers that cannot be understood


class Unread:
    """Headers that could not be understood: they are counted, and one is logged once a minute."""

    def __init__(self) -> None:
        self.count, self._logged, self._lock = 0, (0, float("-inf")), threading.Lock()

    def add(self, headers: list[str]) -> None:
        if not headers:
            return
        with self._lock:
            self.count += len(headers)
            times, now = self.count - self._logged[0], time.monotonic()
            if now < self._logged[1] + LOG_EVERY_S:
                return
            self._logged = self.count, now
        logging.getLogger("dripd").warning("a header about a limit cannot be understood: it is passed over (%d times): %s", times, headers[0])


def read(headers: Mapping[str, str], now_ms: float | None = None) -> Answer:
    """What the headers of an answer say of each limit, and how long to wait where it was refused."""
    of: dict[str, str] = {}
    for name, value in headers.items():
        name = str(name).lower()
        of[name] = f"{of[name]}, {value}" if name in of else str(value)
    return _Reader(of, 1000 * time.time() if now_ms is None else now_ms).answer


class _Reader:
    def __init__(self, of: Mapping[str, str], now_ms: float) -> None:
        self.of, self.now_ms, self.answer = of, now_ms, Answer()
        least: dict[tuple[str, int | None], Limit] = {}  # by limit: those of a minute and of a day differ
        for one in [*self.structured(), *self.by_name()]:
            known = least.get((one.units, one.limit))
            if known is None or one.rank() < known.rank():
                least[one.units, one.limit] = one
        self.answer.limits = sorted(least.values(), key=Limit.rank)[:REPORTS_MOST]
        used_up = max((one.reset_ms for one in self.answer.limits if one.remaining == 0), default=0)
        finer, wait = self.number("retry-after-ms"), self.ms("retry-after")
        self.answer.wait_ms = next((ms for ms in (_whole(finer or 0, MOST_MS), _whole(wait or 0, MOST_MS)) if ms > 0), used_up)

    def cannot_read(self, name: str) -> None:
        self.answer.unread.append(f"{name}: {self.of[name].strip()[:TEXT_MOST]}")

    def parse(self, name: str) -> list[tuple[Any, dict[str, Any]]]:
        """The members of a structured field."""
        try:
            parsed: Any = http_sf.parse(self.of[name].encode("ascii"), tltype="list")
            return list(parsed)
        except Exception:  # whatever is wrong with it
            self.cannot_read(name)
            return []

    def structured(self) -> Iterator[Limit]:
        quotas: dict[str, tuple[float, str]] = {}
        for item, params in self.parse("ratelimit-policy") if "ratelimit-policy" in self.of else []:
            name, quota = _name(item), _item(params.get("q"))
            if name is not None and quota is not None:
                quotas[name] = quota, _name(params.get("qu")) or "requests"
        if "ratelimit" not in self.of:
            return
        try:
            parsed: Any = http_sf.parse(self.of["ratelimit"].encode("ascii"), tltype="dictionary")
            earlier: dict[str, Any] = dict(parsed)
        except Exception:  # it is a list
            earlier = {}
        if "remaining" in earlier:
            numbers = {key: _item(earlier[key][0]) if key in earlier else None for key in ("remaining", "reset", "limit")}
            if numbers["remaining"] is not None and numbers["reset"] is not None:
                yield _limit(numbers["remaining"], 1000 * numbers["reset"], numbers["limit"], False)
            elif "reset" in earlier:  # without it nothing follows from what remains
                self.cannot_read("ratelimit")
            return
        is_read = True
        for item, params in self.parse("ratelimit"):
            name, remaining, reset = _name(item), _item(params.get("r")), _item(params.get("t"))
            if isinstance(item, list) or remaining is None or (reset is None and "t" in params):
                is_read = False
            elif reset is not None:  # it may be left out
                quota, units = quotas.get(name, (None, "requests")) if name is not None else (None, "requests")
                if units == "requests" or "token" in units:
                    yield _limit(remaining, 1000 * reset, quota, "token" in units)
        if not is_read:
            self.cannot_read("ratelimit")

    def by_name(self) -> Iterator[Limit]:
        for name in self.of:
            reset_name = name.replace("remaining", "reset")
            if reset_name == name or reset_name not in self.of or ("ratelimit" not in name and "rate-limit" not in name):
                continue  # without a reset nothing follows from what remains
            remaining, reset = self.number(name), self.ms(reset_name)
            if remaining is not None and reset is not None:
                # `100, 100;w=60` in an earlier form of the draft: the first number is the limit.
                limit = self.number(name.replace("remaining", "limit"), "[,;]")
                is_time = _ms(self.of[reset_name].strip(), 0) != reset
                yield _limit(remaining, reset, limit, "token" in name, self.now_ms if is_time else None)

    def number(self, name: str, until: str = "$") -> float | None:
        if name not in self.of:
            return None
        number = _number(re.split(until, self.of[name])[0])
        if number is None:
            self.cannot_read(name)
        return number

    def ms(self, name: str) -> float | None:
        """How many milliseconds from now a header says; less than 0: it is past."""
        if name not in self.of:
            return None
        ms = _ms(self.of[name].strip(), self.now_ms)
        if ms is None:
            self.cannot_read(name)
        return ms


def _limit(remaining: float, reset_ms: float, limit: float | None, is_cost: bool, from_ms: float | None = None) -> Limit:
    """A limit; `from_ms` is this moment, where the other side said the time of its reset, which may be past."""
    most = min(int(limit), MOST) if limit is not None and limit >= 1 else None
    at = None if from_ms is None else int(max(EPOCH_MS_FROM, from_ms + min(reset_ms, MOST_MS)) + 0.5)
    return Limit(int(max(0, min(remaining, MOST))), _whole(reset_ms, MOST_MS), most, "cost" if is_cost else "job", at)


def _whole(number: float, most: int) -> int:
    return int(max(0, min(number, most)) + 0.5)


def _item(item: Any) -> float | None:
    return float(item) if type(item) in (int, Decimal) else None  # and no bool


def _name(item: Any) -> str | None:
    return str(item) if isinstance(item, (str, http_sf.Token)) else None


def _number(text: str) -> float | None:
    number = float(text) if NUMBER.fullmatch(text := text.strip()) else float("inf")
    return number if abs(number) < float("inf") else None


def _ms(text: str, now_ms: float) -> float | None:
    """Seconds, seconds or milliseconds since 1970, `6m0s`, or a time as in RFC 3339 or HTTP."""
    number = _number(text)
    if number is not None:
        if number < EPOCH_FROM:
            return 1000 * number
        return (number if number >= EPOCH_MS_FROM else 1000 * number) - now_ms if number < EPOCH_MS_TO else None
    if span := SPAN.fullmatch(text.lower()):
        return sum(float(n) * UNITS_MS[unit] for n, unit in re.findall(r"([0-9.]+)([a-z]+)", span[1]))
    try:
        if at := RFC_3339.fullmatch(text):
            zone = "+00:00" if at[4] in "zZ" else at[4]
            return 1000 * datetime.fromisoformat(f"{at[1]}T{at[2]}{zone}").timestamp() + int(f"{at[3] or 0}00"[:3]) - now_ms
        date = parsedate_to_datetime(text)
        return 1000 * date.timestamp() - now_ms if format_datetime(date, usegmt=True) == text else None
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
