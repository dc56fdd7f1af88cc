"""Meanings of log columns, recognized by the column names that gateways, proxies, and tracers use."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from servesim.errors import UserError, shown, suggest

ROLES = ("arrival", "end", "prompt", "output", "total", "latency", "ttft", "session", "tenant", "model", "class", "id",
         "status", "error")  # fmt: skip
"""Meanings of a column. `end`: time at which the answer was complete; `total`: number of prompt and output tokens
combined."""
CHOICES = {"unit": ("s", "ms", "us", "ns"), "decimal": ("comma", "point"), "dates": ("mdy", "dmy")}
"""Settings of `--columns` that do not name columns, with their values."""
SETTINGS = (*ROLES, *CHOICES)
UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
UNIT_WORDS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("ms", "msec", "millis", "milli", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("us", "usec", "micros", "micro", "microsecond", "microseconds", "µs"), "us"),
    **dict.fromkeys(("ns", "nsec", "nanos", "nano", "nanosecond", "nanoseconds"), "ns"),
}
_TOKENS = {"token", "tokens", "tok", "toks"}
_COUNTS = {"len", "length", "lengths", "count", "size"}
_PROMPT = {"prompt", "prompts", "input", "inputs", "in", "context", "prefill", "request", "req", "query", "isl"}
_OUTPUT = {"completion", "completions", "output", "outputs", "out", "generated", "generation", "response", "resp",
           "answer", "decode", "decoded", "reply", "osl"}  # fmt: skip
_OTHER = {"cached", "cache", "reasoning", "thinking", "max", "min", "mean", "avg", "limit", "price", "cost", "usd",
          "details", "text", "image", "audio", "video", "rate", "per", "time", "latency", "id", "ids", "hash", "hashes",
          "budget", "char", "chars", "characters", "bytes", "words", "accepted", "rejected", "draft", "throughput",
          "type", "url", "slo", "p50", "p99"}  # fmt: skip
"""Words that mark a name as counting something other than the tokens of a prompt or an answer."""
_TIME = {"time", "times", "timestamp", "timestamps", "ts", "date", "datetime", "at", "unix", "epoch", "utc", "iso",
         "iso8601", "clock", "stamp", "created", "createdat", "t"}  # fmt: skip
_ARRIVAL = {"arrival", "arrived", "arrive"}
_START = {"start", "started", "begin", "began", "sent", "send", "received", "receive", "request", "requested",
          "requests", "submit", "submitted", "issued", "created", "event", "log"}  # fmt: skip
_END = {"end", "ended", "finish", "finished", "completed", "completion", "done", "complete"}
_LATENCY = {"latency", "duration", "elapsed", "e2e", "e2el", "took"}
_PARTS = {"first", "token", "tokens", "ttft", "tpot", "itl", "queue", "queued", "wait", "waiting", "network", "per",
          "inter", "prefill", "decode", "scheduled", "last", "updated", "model"}  # fmt: skip
"""Words that mark a time as neither the arrival of a request nor its total duration."""
_SESSION = {"session", "conversation", "chat", "thread", "dialog", "dialogue"}
_TENANT = {"user", "tenant", "customer", "org", "organization", "team", "account", "project"}
_NAMED = {"id", "ids", "name", "key", "provided", "uuid"}


_SUMS = {"num", "n", "number", "of", "model", "requests", "request", "count", "total", "calls", "api"}


@dataclass(frozen=True)
class Columns:
    """Columns given by `--columns`: the column for each meaning, and how times and numbers are written."""

    given: Mapping[str, str]
    """Column for each meaning; an empty string means that there is none."""
    unit: str | None = None
    """Unit of times."""
    decimal: str | None = None
    """Decimal mark of numbers."""
    dates: str | None = None
    """Order of day and month in dates that end in the year."""

    @classmethod
    def of(cls, text: str | Mapping[str, object] | None) -> Columns:
        """Parse `arrival='Request Time',prompt=...`; raise UserError listing the valid meanings if one is unknown."""
        given = _pairs(text) if isinstance(text, str) else {str(k): str(v) for k, v in (text or {}).items()}
        for role in given:
            if role not in SETTINGS:
                raise UserError(f"columns: unknown meaning {shown(role)}{suggest(role, SETTINGS)}")
        chosen = {name: given.pop(name) for name in CHOICES if name in given}
        for name, value in chosen.items():
            if value not in CHOICES[name]:
                raise UserError(f"columns: {name} is {shown(value)} but must be one of {', '.join(CHOICES[name])}")
        return cls(given, **chosen)

    def constant(self, role: str, names: Sequence[str]) -> int | None:
        """Return the token count given instead of a column, as in `prompt=2000`."""
        text = self.given.get(role, "")
        return int(text) if role in ("prompt", "output") and text.isdecimal() and text not in names else None


def _pairs(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in re.findall(r"""(?:[^,'"]|'[^']*'|"[^"]*")+""", text):
        role, equals, column = part.partition("=")
        if not equals:
            raise UserError(
                f"columns: {shown(part)} must have the form MEANING=COLUMN, such as arrival='Request Time',prompt=in"
            )
        found[role.strip()] = column.strip().strip("'\"")
    return found


def words(name: str) -> list[str]:
    """Return the words of a name in lowercase: `promptTokenCount` and `Prompt Token-Count` yield the same words."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name.replace("OpenAI", "openai"))
    found = re.findall(r"[a-zµ0-9]+", spaced.lower())
    genai = {i + k for i in range(len(found) - 1) if found[i : i + 2] == ["gen", "ai"] for k in (0, 1)}
    return [word for i, word in enumerate(found) if i not in genai]


def unit_of(name: str) -> str | None:
    """Return the unit in a name such as `latency_ms`, `Time (us)`, or `startTimeUnixNano`."""
    found = words(name)
    return next((UNIT_WORDS[word] for word in reversed(found) if word in UNIT_WORDS and len(found) > 1), None)


def roles(
    names: Sequence[str], columns: Columns, same: Callable[[str, str], bool], clock: Callable[[str], int]
) -> dict[str, str]:
    """Return the column for each meaning that is found: the given one, or else the one whose name fits best. `same(a,
    b)` returns whether two columns have equal contents, and `clock(name)` whether a column contains dates (0), growing
    numbers (1), or other numbers (2): for arrivals, dates are preferred, and numbers that do not grow are excluded.
    Raise UserError if two different columns match equally well, or if a given column does not exist."""
    found: dict[str, str] = {}
    for role, column in columns.given.items():
        if column and column not in names and columns.constant(role, names) is None:
            raise UserError(f"no column {shown(column)}{suggest(column, names[:12])}")
        if column in names:
            found[role] = column
    free = [name for name in names if name not in found.values()]
    for role in ROLES:
        if role in columns.given:
            continue
        ranked = sorted((rank, len(words(n)), names.index(n), n) for n in free if (rank := _rank(role, n)) is not None)
        if role == "arrival":
            kinds = {name: clock(name) for *_, name in ranked}
            ranked = [each for each in ranked if kinds[each[-1]] == min(kinds.values()) < 2 or each[0] == 0]
        if not ranked:
            continue
        best = [n for rank, count, _, n in ranked if (rank, count) == ranked[0][:2]]
        if role in ("arrival", "prompt", "output") and len(best) > 1 and not all(same(best[0], n) for n in best[1:]):
            raise UserError(
                f"{shown(best[0])} or {shown(best[1])} could be the {role}: choose with --columns {role}=NAME"
            )
        found[role] = best[0]
        free.remove(best[0])
    return found


def beside(names: Sequence[str], column: str, side: str) -> list[str]:
    """Return the columns that count tokens of a prompt or an answer (`side`) which the side's own column may exclude:
    prompt tokens read from or written to a cache, as in the APIs of Anthropic and Bedrock, and the finer counts of
    Langfuse's usage details."""
    own = words(column)
    found = []
    for name in names:
        parts = words(name)
        if name == column or "ephemeral" in parts:
            continue
        cache = {"cache", "input"} <= set(parts) and set(parts) & {"read", "creation", "write"} and set(parts) & _TOKENS
        finer = own[:2] == ["usage", "details"] == parts[:2] and parts[2:3] == own[2:3]
        if finer or (cache and side == "prompt" and "input" in own):
            found.append(name)
    return found


def of_several(name: str) -> bool:
    """Return whether a column counts requests, as in hourly totals."""
    parts = set(words(name))
    return bool(parts & {"requests", "calls"} or {"request", "count"} <= parts) and parts <= _SUMS


def _rank(role: str, name: str) -> int | None:
    """Return how well a name fits a meaning (0 is best), or None if it does not fit."""
    found = set(words(name)) - set(UNIT_WORDS)
    if role in ("prompt", "output"):
        return _tokens_rank(found, *((_PROMPT, _OUTPUT) if role == "prompt" else (_OUTPUT, _PROMPT)))
    if role == "total":
        found -= {"details"} if "usage" in found else set()
        return (
            0
            if "total" in found and found & {*_TOKENS, "usage"} and not found & {*_OTHER, *_PROMPT, *_OUTPUT}
            else None
        )
    if role in ("arrival", "end", "latency", "ttft"):
        return _time_rank(role, found, name)
    if role in ("session", "tenant"):
        core = _SESSION if role == "session" else _TENANT
        return 0 if found & core and found <= core | _NAMED else None
    plain = "".join(words(name))
    known = {
        "model": ("model", "modelname", "modelid", "requestmodel"),
        "class": ("class", "sloclass"),
        "id": ("requestid", "id", "reqid", "rid", "xrequestid", "spanid"),
        "status": ("status", "statuscode", "httpstatus", "httpcode", "responsecode", "code"),
        "error": ("error", "haserror", "errormessage", "success"),
    }[role]
    return known.index(plain) if plain in known else None


def _tokens_rank(found: set[str], own: set[str], other: set[str]) -> int | None:
    found -= {"details"} if found <= {"usage", "details"} | own else set()
    found -= {"usage", "num", "number", "n", "llm", "native", "of", "total"} if found & own else set()
    if not found & own or found & other - own or found & _OTHER:
        return None
    if found & {"isl", "osl"} or (found & _TOKENS and found <= own | _TOKENS | _COUNTS):
        return 0
    if found & _COUNTS and found <= own | _COUNTS:
        return 1 if "request" not in found and "response" not in found else 3
    return (
        2 if found & _TOKENS else 4 if len(found) == 1 and found & {"prompt", "input", "output", "completion"} else None
    )


def _time_rank(role: str, found: set[str], name: str) -> int | None:
    if role == "ttft":
        return 0 if "ttft" in found or ({"first", "token"} <= found and found & (_TIME | _LATENCY | {"to"})) else None
    if not found and name == "msec":  # nginx: epoch seconds
        return 3 if role == "arrival" else None
    if found & _PARTS - ({"completion"} if role == "end" else set()):
        return None
    if role == "latency":
        if found & _LATENCY:
            return 0
        if found == {"request", "time"}:  # nginx's; a growing arrival column is already taken
            return 2
        return 1 if found & {"response", "total", "processing", "run"} and found & {"time"} else None
    if found & (_LATENCY | {"response", "total", "processing", "run", "count", "id", "ids", "zone", "timezone"}):
        return None
    if found == {"request", "time"}:  # a duration in nginx's logs, an arrival time in others: the caller checks
        return 4 if role == "arrival" else None
    if role == "end":
        return 0 if found & _END and found <= _END | _TIME | {"request"} else None
    if found & _END:
        return None
    if found & _ARRIVAL:
        return 0
    if (found & _START and found & _TIME) or found in ({"start"}, {"created"}):
        return 1 if found & _START - {"event", "log", "created"} else 2
    return 3 if found and found <= _TIME else None
