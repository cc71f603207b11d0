"""The commands of small pool histories, as a server would write them."""

from __future__ import annotations

from array import array

import msgpack

from load.chaos.aof import Transaction

P = b"orca:{test}:"
Commands = list[list[bytes]]


def command(name: str, key: str, *args: object) -> list[bytes]:
    return [name.encode(), P + key.encode(), *(a if isinstance(a, bytes) else str(a).encode() for a in args)]


def pack(*tokens: int) -> bytes:
    return array("I", tokens).tobytes()


def submit(request: str, choices: int = 1, most: int = 8, have: tuple[int, ...] = ()) -> Commands:
    commands = []
    for i in range(choices):
        id = f"{request}/{i}"
        fields = ("state", "waiting", "group", request, "rank", 1, "prompt", pack(1, 2), "prompt_len", 2)
        commands.append(command("HSET", f"seq:{id}", *fields, "tokens_max", 2 + most, "sampling", "x"))
        if have:
            commands.append(command("SET", f"tok:{id}", pack(*have)))
        commands.append(command("ZADD", "waiting:default", 1, id))
    return [*commands, command("HSET", f"group:{request}", "ids", "x", "open", choices, "bytes", 10)]


LEASE = 5_000_000  # us


def at(seconds: float, commands: Commands) -> Commands:
    """The commands of a script that ran at this time."""
    return [command("HSET", "meta", "stamp", round(seconds * 1e6), "tick", 1), *commands]


def acquire(seat: str, epoch: str, seconds: float = 0.0, owner: str = "node:1/77") -> Commands:
    """At that time of the file, where `at` says it."""
    return [
        command("HSET", f"seat:{seat}", "epoch", epoch, "owner", owner, "lease", LEASE, "call", 0),
        command("ZADD", "leases", round(seconds * 1e6) + LEASE, seat),
    ]


def attached(seat: str, numerics: str) -> Commands:
    """What the first exchange of a seat writes about its engine."""
    return [command("HSET", f"seat:{seat}", "figures", msgpack.packb(["model", 256, 8, 16, 320, numerics]))]


def renew(seat: str, seconds: float) -> Commands:
    """What its exchange does, at that time of the file, where `at` says it."""
    return [command("ZADD", "leases", round(seconds * 1e6) + LEASE, seat)]


def released(seat: str, epoch: str) -> Commands:
    return [command("HSET", f"seat:{seat}", "released", epoch)]


def said_dead(seat: str, epoch: str) -> Commands:
    return [command("HSET", f"seat:{seat}", "dead", epoch)]


def vacate(seat: str, *ids: str) -> Commands:
    waits = [c for id in ids for c in wait_again(id)]
    return [*waits, command("DEL", f"running:{seat}"), command("HDEL", f"seat:{seat}", "epoch", "owner", "call")]


def wait_again(id: str) -> Commands:
    return [
        command("HSET", f"seq:{id}", "state", "waiting"),
        command("HDEL", f"seq:{id}", "seat"),
        command("ZADD", "waiting:default", 1, id),
    ]


def exchange(seat: str, call: int, *parts: Commands) -> Commands:
    commands = [c for part in parts for c in part]
    return [*commands, command("HSET", f"seat:{seat}", "call", call, "claimed", "x", "gauges", "x", "summary", "x")]


def claim(seat: str, id: str) -> Commands:
    return [
        command("ZREM", "waiting:default", id),
        command("HSET", f"seq:{id}", "state", "running", "seat", seat),
        command("SADD", f"running:{seat}", id),
    ]


def append(id: str, *tokens: int) -> Commands:
    return [command("APPEND", f"tok:{id}", pack(*tokens))]


def end(id: str, seat: str) -> Commands:
    return [
        command("SREM", f"running:{seat}", id),
        command("HSET", f"seq:{id}", "state", "ended", "end", "x"),
        command("HDEL", f"seq:{id}", "seat"),
        command("HINCRBY", f"group:{id.partition('/')[0]}", "open", -1),
    ]


def cancel(id: str) -> Commands:
    """Cancel a waiting sequence."""
    return [
        command("ZREM", "waiting:default", id),
        command("HSET", f"seq:{id}", "state", "ended", "end", "x"),
        command("HINCRBY", f"group:{id.partition('/')[0]}", "open", -1),
    ]


def publish(id: str, index: int, *tokens: int) -> Commands:
    entry = msgpack.packb([[id], [index], [len(tokens)], pack(*tokens), []], use_bin_type=False)
    return [command("XADD", "events:g", "MAXLEN", "=", 10, "1-1", "e", entry)]


def forget(request: str, choices: int = 1) -> Commands:
    deletes: Commands = []
    for i in range(choices):
        deletes.append([b"DEL", *(P + f"{kind}:{request}/{i}".encode() for kind in ("seq", "tok", "lp"))])
    return [*deletes, command("DEL", f"group:{request}")]


def transactions(*all: Commands) -> list[Transaction]:
    return [Transaction(number, commands) for number, commands in enumerate(all, 1)]


RIGHT: list[Commands] = [
    submit("r", 2),
    acquire("s", "1:a"),
    exchange("s", 1, claim("s", "r/0"), claim("s", "r/1")),
    exchange("s", 2, append("r/0", 5), append("r/1", 7), publish("r/0", 0, 5), publish("r/1", 0, 7)),
    said_dead("s", "1:a") + vacate("s", "r/0", "r/1") + acquire("s", "2:b"),
    exchange("s", 1, claim("s", "r/0"), claim("s", "r/1")),
    exchange("s", 2, append("r/0", 6), end("r/0", "s"), publish("r/0", 1, 6)),
    released("s", "2:b") + vacate("s", "r/1"),
    cancel("r/1"),
    forget("r", 2),
]
