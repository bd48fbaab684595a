"""Connections to Redis, and what its errors mean."""

from __future__ import annotations

import re
from typing import Any

from redis import ConnectionPool, Redis, exceptions
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.retry import Retry

# Of these the client takes the code away. A class stands before the one that it is made from.
CODES: list[tuple[type[Exception], str]] = [
    (exceptions.BusyLoadingError, "LOADING"), (exceptions.OutOfMemoryError, "OOM"), (exceptions.NoPermissionError, "NOPERM"),
    (exceptions.ReadOnlyError, "READONLY"), (exceptions.MasterDownError, "MASTERDOWN"), (exceptions.ClusterDownError, "CLUSTERDOWN"),
    (exceptions.TryAgainError, "TRYAGAIN"), (exceptions.MovedError, "MOVED"), (exceptions.AskError, "ASK"),
    (exceptions.ClusterCrossSlotError, "CROSSSLOT"), (exceptions.NoScriptError, "NOSCRIPT"), (exceptions.ExecAbortError, "EXECABORT"),
]
IS_CODE = re.compile(r"[A-Z][A-Z0-9]+\Z")
AWAY = "AWAY"  # no answer: Redis could not be reached
# What passes: Redis or the first daemon is not there yet, or Redis takes no writes for now. The others stay until somebody acts.
PASSES = {AWAY, "LOADING", "BUSY", "MASTERDOWN", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "MISCONF", "OOM"}
FULL = "max number of clients reached"


class Refused(Exception):
    """A call was refused, and nothing was changed. `code` is what a function or Redis says (BADBUCKET, BADARG, TOOLARGE, TOOMANY, WRONGTYPE,
    OOM, LOADING, NOAUTH …), ERR where it says no more than that, and AWAY where Redis could not be reached."""

    def __init__(self, why: Exception) -> None:
        self.code, text = _code(why), str(why)
        self.message = text.removeprefix(f"{self.code} ")
        super().__init__(f"{self.code} {self.message}")

    def passes(self) -> bool:
        """May the same call be taken a little later, without anybody's help but a daemon's?"""
        is_early = "unction not found" in self.message or self.code == "BADBUCKET" and "try again" in self.message
        return self.code in PASSES or is_early or FULL in self.message


class Unknown(Exception):
    """The connection was lost during a push: it may have happened. It is never repeated for you."""


def _code(why: Exception) -> str:
    if status := getattr(why, "status_code", None):  # redis-py 7 and later
        return str(status)
    for kind, code in CODES:
        if isinstance(why, kind):
            return code
    if isinstance(why, exceptions.AuthenticationError):
        return "WRONGPASS" if "username-password" in str(why) else "NOAUTH"
    if isinstance(why, exceptions.ResponseError):
        first = str(why).split(" ", 1)[0]
        return first if IS_CODE.match(first) else "ERR"
    return "ERR" if FULL in str(why) else AWAY


def is_answer(why: Exception) -> bool:
    """Did Redis answer with this error? Then it did nothing."""
    return _code(why) != AWAY


def connect(url: str, refuses: bool = False) -> Any:
    """A client that repeats nothing by itself. A job is bytes, so replies are, whatever the options of the address say. With `refuses` a
    connection that cannot be made is Refused: nothing was sent."""
    defaults = {"socket_timeout": 5, "socket_connect_timeout": 5, "max_connections": 2**31 - 1}  # the same in each version of redis-py
    ours = {"protocol": 2, "decode_responses": False, "encoding": "utf-8", "retry": Retry(NoBackoff(), 0)}
    parse: Any = parse_url  # which has no types in older versions
    options: dict[str, Any] = {**defaults, **parse(url), **ours}
    options.pop("legacy_responses", None)  # the form of replies that is read here is the one without it
    pool = ConnectionPool(**options)
    if refuses:
        pool.connection_class = _refusing(pool.connection_class)
    return Redis(connection_pool=pool)


def _refusing(base: Any) -> Any:
    def connect(self: Any) -> None:
        try:
            base.connect(self)
        except exceptions.RedisError as why:
            raise Refused(why) from why

    return type(base.__name__, (base,), {"connect": connect})
