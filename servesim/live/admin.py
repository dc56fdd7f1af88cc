"""Pages for operators, which hold a token: they crash, slow, drain, add and replace replicas of a server, one by one or
those of a node or pool together, and slow its network."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from typing import Any

from servesim.errors import UserError, shown, suggest
from servesim.features.failures.setup import ns_of, seconds_of
from servesim.hardware.model import model_named
from servesim.live.driver import Driver
from servesim.live.protocol import Refused
from servesim.live.watcher import Handler, Pages, Visit, Watcher
from servesim.parsing import pairs

TOKEN_LEAST = 16
"""Minimum number of characters of a token."""
KEYS = {
    "crash": ("replica", "node", "restart_s"),
    "slow": ("replica", "node", "for_s", "factor"),
    "drain": ("replica", "node"),
    "slow_net": ("replica", "node", "pool", "for_s", "factor"),
    "upgrade": ("batch", "surge", "startup_s", "grace_s", "pool", "gpu", "model"),
    "add": ("startup_s", "pool", "gpu", "model"),
    "replace": ("replica", "startup_s", "pool", "gpu", "model"),
}
"""Keys of the body of each page."""
Body = Mapping[str, Any]


class Admin(Watcher):
    """Pages under /admin, for those who send `token`."""

    def __init__(self, token: str) -> None:
        """Raise UserError for a token that could be guessed or not be sent."""
        if len(token) < TOKEN_LEAST or not token.isascii() or not token.isprintable() or " " in token:
            raise UserError(f"the admin token must have at least {TOKEN_LEAST} printable ASCII characters, no spaces")
        self._expected = f"Bearer {token}".encode()

    def admits(self, path: str, headers: Mapping[str, str]) -> None:
        if path == "/admin" or path.startswith("/admin/"):
            self._check(headers)

    def announced(self) -> str:
        return "operators may use the pages under /admin"

    def pages(self) -> Pages:
        did: dict[str, Callable[[Driver, Body], None]] = {
            "crash": _crash,
            "slow": _slow,
            "drain": _drain,
            "slow_net": _slow_net,
            "upgrade": _upgrade,
            "add": _add,
            "replace": _replace,
        }
        pages = {("POST", f"/admin/{name}"): self._page(name, do) for name, do in did.items()}
        return {("GET", "/admin"): self._page(), **pages}

    def _page(self, name: str = "", do: Callable[[Driver, Body], None] | None = None) -> Handler:
        def page(visit: Visit) -> dict[str, Any]:
            driver = self.driver
            if driver.failure:
                raise Refused(503, "the engine has failed; it restarts with the next request")
            if do is not None:
                for key in visit.body:
                    if key not in KEYS[name]:
                        raise Refused(400, f"unknown key {shown(key)}{suggest(key, KEYS[name])}")
                try:
                    do(driver, visit.body)
                except UserError as error:
                    raise Refused(400, str(error).removeprefix("cluster.failures: ")) from None
            return state_of(driver)

        return page

    def _check(self, headers: Mapping[str, str]) -> None:
        given = headers.get("authorization")
        if given is None:
            raise Refused(401, "send the admin token: Authorization: Bearer TOKEN")
        if not hmac.compare_digest(given.encode("latin-1"), self._expected):
            raise Refused(403, "this is not the admin token")


def state_of(driver: Driver) -> dict[str, Any]:
    """Return the state of a server's replicas, and what was done to them."""
    assert driver.operations is not None
    cluster, deployments = driver.cluster, {pool.name: pool.deployment for pool in driver.setup.pools}
    replicas = []
    for replica in cluster.replicas:
        deployment, slow = deployments[replica.pool], driver.operations.slow(replica.index)
        replicas.append(
            {
                "replica": replica.index,
                "state": replica.state,
                "pool": replica.pool,
                "gpu": deployment.gpu.name,
                "model": deployment.model.name,
                "running": replica.num_running,
                "waiting": replica.num_waiting + replica.num_unread,
                "kv_usage": replica.kv_usage,
                "slowed": slow.factor if slow is not None else 1,
            }
        )
    return {
        "now_s": driver.now_ns() / 1e9,
        "waiting_in_router": cluster.num_waiting,
        "replicas": replicas,
        "done": driver.operations.done,
    }


def _crash(driver: Driver, body: Body) -> None:
    def say(at_ns: int) -> str:
        where, there = _place(driver, body)
        if not any(driver.cluster.replicas[index].up for index in there):
            raise Refused(409, f"{where.replace('=', ' ')} is down already")
        restart = "" if body.get("restart_s") is None else f",restart={_number(body, 'restart_s')}"
        return f"crash:{where},at={seconds_of(at_ns)}{restart}"

    driver.operate(say)


def _slow(driver: Driver, body: Body) -> None:
    def say(at_ns: int) -> str:
        return f"slow:{_place(driver, body)[0]},{_period(body, at_ns)},factor={_number(body, 'factor')}"

    driver.operate(say)


def _drain(driver: Driver, body: Body) -> None:
    driver.operate(lambda at_ns: f"drain:{_staying(driver, body)},at={seconds_of(at_ns)}")


def _slow_net(driver: Driver, body: Body) -> None:
    def say(at_ns: int) -> str:
        places = [f"pool={_name(body, 'pool')}"] if body.get("pool") is not None else []
        if body.get("replica") is not None or body.get("node") is not None:
            places.append(_place(driver, body)[0])
        return ",".join([*places, _period(body, at_ns), f"factor={_number(body, 'factor')}"])

    driver.operate(lambda at_ns: f"slow_net:{say(at_ns)}")


def _upgrade(driver: Driver, body: Body) -> None:
    def say(at_ns: int) -> str:
        more = {"batch": body.get("batch", 1), "surge": int(body.get("surge", 0) in (1, True))}
        if type(more["batch"]) is not int or body.get("surge", 0) not in (0, 1):
            raise Refused(400, "batch must be a whole number, and surge 0 or 1")
        if body.get("grace_s") is not None:
            more["grace"] = _number(body, "grace_s")
        rest = ",".join(f"{key}={value}" for key, value in more.items())
        return f"{_started('upgrade', driver, body, at_ns)},{rest}"

    driver.operate(say)


def _add(driver: Driver, body: Body) -> None:
    driver.operate(lambda at_ns: _started("add", driver, body, at_ns))


def _replace(driver: Driver, body: Body) -> None:
    """Add a replica, and drain another one when it is ready."""
    replica, ready = "", 0

    def say(at_ns: int) -> str:
        nonlocal replica, ready
        replica = _staying(driver, body)
        text = _started("add", driver, body, at_ns)
        ready = at_ns + ns_of(text.partition("startup=")[2].partition(",")[0])
        return text

    driver.operate(say)
    driver.operate(lambda at_ns: f"drain:{replica},at={seconds_of(at_ns)}", ready)


def _started(kind: str, driver: Driver, body: Body, at_ns: int) -> str:
    """Return what starts replicas, with the time that each takes to start."""
    assert driver.operations is not None
    names = {key: _name(body, key) for key in ("pool", "gpu", "model") if body.get(key) is not None}
    if body.get("startup_s") is None:
        startup = seconds_of(driver.operations.start_ns(kind, **names))
    else:
        startup = _number(body, "startup_s")
    return ",".join([f"{kind}:at={seconds_of(at_ns)}", f"startup={startup}", *(f"{k}={v}" for k, v in names.items())])


def _period(body: Body, at_ns: int) -> str:
    until_ns = at_ns + ns_of(_number(body, "for_s"))
    return f"at={seconds_of(at_ns)},until={seconds_of(until_ns)}"


def _staying(driver: Driver, body: Body) -> str:
    """Return the place that a body names as `replica=3` or `node=3`, unless all there drain."""
    where, there = _place(driver, body)
    if all(driver.cluster.replicas[index].state == "draining" for index in there):
        raise Refused(409, f"{where.replace('=', ' ')} is draining already")
    return where


def _place(driver: Driver, body: Body) -> tuple[str, list[int]]:
    """Return the replica or node that a body names as `replica=3` or `node=3`, and the replicas there."""
    if body.get("node") is None:
        index = _replica(driver, body)
        return f"replica={index}", [index]
    assert driver.operations is not None
    node, count = body["node"], driver.operations.num_nodes(driver.cluster.fleet)
    if body.get("replica") is not None:
        raise Refused(400, "replica and node are both specified")
    if type(node) is not int:
        raise Refused(400, f"node is {shown(node)} but must be the number of a node")
    if not 0 <= node < count:
        raise Refused(404, f"there is no node {shown(node)}; they are numbered from 0 to {count - 1}")
    there = driver.operations.on_node(node, driver.cluster.fleet)
    if not there:
        raise Refused(409, f"node {node} has no replicas")
    return f"node={node}", there


def _replica(driver: Driver, body: Body) -> int:
    """Return the replica that a body names, unless it is gone."""
    index, count = body.get("replica"), len(driver.cluster.replicas)
    if type(index) is not int:
        raise Refused(400, f"replica is {shown(index)} but must be the number of a replica")
    if not 0 <= index < count:
        raise Refused(404, f"there is no replica {shown(index)}; they are numbered from 0 to {count - 1}")
    if driver.cluster.replicas[index].state == "gone":
        raise Refused(409, f"replica {index} is gone")
    return index


def _number(body: Body, key: str) -> str:
    """Return a number of a body as text."""
    value = body.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1e7:
        return str(value)
    raise Refused(400, f"{key} is {shown(value)} but must be a number from 0 to 1e7")


def _name(body: Body, key: str) -> str:
    """Return a name of a body, which a setting can hold."""
    value = body[key]
    if key == "model" and isinstance(value, str) and model_named(value.partition(":")[0]) is None:
        raise Refused(400, f"model {shown(value)} is unknown")  # what files this machine has is not told
    if isinstance(value, str) and value and value.isprintable() and pairs(key, f"{key}={value}") == {key: value}:
        return value
    raise Refused(400, f"{key} is {shown(value)} but must be a name")
