"""How much more an API lets through, read from the headers of its answer.

`RateLimit` and `RateLimit-Policy` (IETF draft, structured fields), and headers with a number each, whose names differ in one word:
X-RateLimit-Remaining, RateLimit-Remaining, x-ratelimit-remaining-tokens, anthropic-ratelimit-requests-remaining.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

import http_sf

MOST = 1_000_000_000  # jobs, or units of cost
MOST_MS = 86_400_000  # a longer one is asked for again after a day
REPORTS_MOST = 4
EPOCH_FROM, EPOCH_MS_FROM = 1e9, 1e11  # numbers from here on are seconds, or milliseconds, since 1970
UNITS_MS = {"h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
SPAN = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|h|m|s))+")


@dataclass(frozen=True)
class Limit:
    """So much more until the reset: jobs, or units of what they cost."""

    remaining: int
    reset_ms: int
    limit: int | None  # how much is let through after a reset, where that is said
    units: str  # job or cost

    def args(self, budget: str | None) -> list[str | int]:
        """As arguments of drip_ack and drip_fail."""
        limit: list[str | int] = ["LIMIT", self.limit] if self.limit else []
        where: list[str | int] = ["IN", budget] if budget else []
        return ["REMAINING", self.remaining, "RESET", self.reset_ms, *limit, "UNITS", self.units, *where]


def read(headers: Mapping[str, str]) -> list[Limit]:
    """What is said of each limit. What cannot be understood is passed over."""
    of = {str(name).lower(): str(value) for name, value in headers.items()}
    least: dict[tuple[str, int | None], Limit] = {}  # by limit: those of a minute and of a day differ
    for one in [*_structured(of), *_by_name(of)]:
        known = least.get((one.units, one.limit))
        if known is None or (one.remaining, -one.reset_ms) < (known.remaining, -known.reset_ms):
            least[one.units, one.limit] = one
    return list(least.values())[:REPORTS_MOST]


def _limit(remaining: float, reset_ms: float, limit: float | None, is_cost: bool) -> Limit:
    most = int(max(1, min(limit, MOST))) if limit and limit > 0 else None
    return Limit(int(max(0, min(remaining, MOST))), int(max(0, min(reset_ms, MOST_MS))), most, "cost" if is_cost else "job")


def _structured(of: Mapping[str, str]) -> Iterator[Limit]:
    quotas: dict[str, tuple[float, bool]] = {}
    for name, params in _list(of.get("ratelimit-policy", "")):
        if isinstance(params.get("q"), int):
            quotas[name] = (params["q"], "token" in str(params.get("qu", "")))
    text = of.get("ratelimit", "")
    earlier = dict(re.findall(r"(limit|remaining|reset)=(\d+)", text))
    if "remaining" in earlier and "reset" in earlier:
        limit = float(earlier["limit"]) if "limit" in earlier else None
        yield _limit(float(earlier["remaining"]), 1000 * float(earlier["reset"]), limit, False)
        return
    for name, params in _list(text):
        quota, is_cost = quotas.get(name, (None, False))
        if isinstance(params.get("r"), int) and isinstance(params.get("t"), int):
            yield _limit(params["r"], 1000 * params["t"], quota, is_cost)


def _list(text: str) -> list[tuple[str, Any]]:
    try:
        return [(str(item), params) for item, params in http_sf.parse(text.encode(), tltype="list")] if text else []
    except Exception:  # whatever is wrong with it
        return []


def _by_name(of: Mapping[str, str]) -> Iterator[Limit]:
    for name, value in of.items():
        if "remaining" not in name or ("ratelimit" not in name and "rate-limit" not in name):
            continue
        remaining, reset = _number(value), _ms(of.get(name.replace("remaining", "reset"), ""))
        if remaining is not None and reset is not None:
            limit = _number(re.split("[,;]", of.get(name.replace("remaining", "limit"), ""))[0])
            yield _limit(remaining, reset, limit, "token" in name)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) < float("inf") else None


def _ms(text: str) -> float | None:
    """Seconds, seconds or milliseconds since 1970, `6m0s`, or a time as in RFC 3339 or HTTP."""
    text, number = text.strip(), _number(text)
    if number is not None:
        if number < EPOCH_FROM:
            return 1000 * number
        return (number if number >= EPOCH_MS_FROM else 1000 * number) - 1000 * time.time()
    if SPAN.fullmatch(text):
        return sum(float(n) * UNITS_MS[unit] for n, unit in re.findall(r"(\d+(?:\.\d+)?)(ms|h|m|s)", text))
    for parse in (lambda: datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text)), lambda: parsedate_to_datetime(text)):
        try:
            return 1000 * (parse().timestamp() - time.time())
        except (ValueError, TypeError, OverflowError):
            pass
    return None
