"""Where the pool's server is: the forms of `redis_url`.

    redis://[USER:PASSWORD@]HOST[:PORT][/DB][?OPTIONS]                          one server
    unix://[USER:PASSWORD@]/PATH[?OPTIONS]                                      one server on this machine
    redis+sentinel://[USER:PASSWORD@]HOST[:PORT],.../MASTER[/DB][?OPTIONS]      the master that Sentinels name
    redis+cluster://[USER:PASSWORD@]HOST[:PORT],...[?OPTIONS]                   nodes of a Cluster

`rediss` in place of `redis` uses TLS, for Sentinels too. The options are those of redis-py's connections. User and
password are those of the servers; the options `sentinel_username` and `sentinel_password` are those of the Sentinels.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

SERVER_PORT, SENTINEL_PORT = 6379, 26379
_MASTER = re.compile(r"[A-Za-z0-9._-]+")  # the names that Sentinel accepts
_OF_SENTINELS = ("sentinel_username", "sentinel_password")
_FORMS = {
    "sentinel": "redis+sentinel://[USER:PASSWORD@]HOST[:PORT],.../MASTER[/DB]",
    "cluster": "redis+cluster://[USER:PASSWORD@]HOST[:PORT],...",
}
_EXPECTED = (
    "is not 'redis://', 'rediss://' or 'unix://' with a host or a path, 'redis+sentinel://' with hosts and a master, "
    "or 'redis+cluster://' with hosts; in a user's name or password write /, ?, #, @, : and % as %XX; "
    "several shards are '0=URL 1=URL', separated by spaces"
)

Kind = Literal["server", "sentinel", "cluster"]


@dataclass(frozen=True, slots=True)
class Address:
    """A URL, parsed. `hosts`: (host, port) of the server, of the Sentinels or of the nodes; empty for a unix socket.
    `server_url` is the URL of one server with the same credentials, database and options, as redis-py reads it.
    `sentinel_login`: `username` and `password` for the Sentinels, if there are any."""

    kind: Kind
    server_url: str
    hosts: tuple[tuple[str, int], ...] = ()
    master: str = ""
    sentinel_login: dict[str, str] = field(default_factory=dict)


def parse(url: str) -> Address:
    """Raises ValueError with what is wrong and the expected form. The error repeats no part of the URL, because any
    part of a wrong one may be a password."""
    scheme, separator, _ = url.partition("://")
    tls, _, kind = scheme.partition("+")
    if not separator or tls not in ("redis", "rediss", "unix") or kind not in ("", *_FORMS):
        raise ValueError(_EXPECTED)
    if tls != "rediss" and any(name.startswith("ssl_") for name, _ in parse_qsl(url.partition("?")[2])):
        raise ValueError(f"has options of TLS (ssl_...), which need 'rediss{'+' * bool(kind)}{kind}://'")
    if not kind or tls == "unix":
        return _server(url, scheme)
    return _several(url, tls, "sentinel" if kind == "sentinel" else "cluster")


def without_password(url: str) -> str:
    """The URL without user and password, and without its query, which may contain them too."""
    scheme, _, rest = url.partition("?")[0].partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def _server(url: str, scheme: str) -> Address:
    try:
        parts = urlsplit(url)
        if scheme not in ("redis", "rediss", "unix") or (parts.port is not None and parts.port < 1):
            raise ValueError
        if scheme == "unix":
            return Address("server", url)
        return Address("server", url, ((parts.hostname or "localhost", parts.port or SERVER_PORT),))
    except ValueError:
        raise ValueError(_EXPECTED) from None


def _several(url: str, tls: str, kind: Literal["sentinel", "cluster"]) -> Address:
    form = f"; expected {_FORMS[kind]}"
    try:
        parts = urlsplit(url)
    except ValueError:  # its error repeats the part with user and password
        raise ValueError("has a bracket or another character that hosts cannot have" + form) from None
    login, _, listed = parts.netloc.rpartition("@")
    port = SENTINEL_PORT if kind == "sentinel" else SERVER_PORT
    hosts = tuple(_host(host, number, port, form) for number, host in enumerate(listed.split(","), 1))
    first, *rest = parts.path.strip("/").split("/")
    master, database = (first, "/".join(rest)) if kind == "sentinel" else ("", "/".join([first, *rest]))
    if kind == "sentinel" and not _MASTER.fullmatch(master):
        raise ValueError("names no master of the Sentinels" + form)
    if database and not database.isdigit():
        raise ValueError("has a database that is not a number" + form)
    if kind == "cluster" and int(database or 0):
        raise ValueError("names a database, and a Cluster has one only" + form)
    options = parse_qsl(parts.query)
    host = f"[{hosts[0][0]}]" if ":" in hosts[0][0] else hosts[0][0]
    query = urlencode([(name, value) for name, value in options if name not in _OF_SENTINELS])
    server = f"{tls}://{login + '@' if login else ''}{host}:{hosts[0][1]}/{database or 0}{'?' + query if query else ''}"
    sentinel_login = {name.removeprefix("sentinel_"): value for name, value in options if name in _OF_SENTINELS}
    return Address(kind, server, hosts, master, sentinel_login if kind == "sentinel" else {})


def _host(given: str, number: int, default: int, form: str) -> tuple[str, int]:
    """Host and port of one item of the list, the `number`-th."""
    try:
        parts = urlsplit(f"//{given}")
        host, port = unquote(parts.hostname or ""), default if parts.port is None else parts.port
    except ValueError:
        host, port = "", 0
    if not host or not port or parts.path:
        raise ValueError(f"has no host, or no port from 1 to 65535, at place {number} of its list" + form)
    return host, port
