"""Addresses of servers in settings, URLs and `Host` headers."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address


def parse(host: str) -> IPv4Address | IPv6Address | None:
    """Return the IP address in `host`, with or without brackets; None if `host` is a name."""
    try:
        return ip_address(host[1:-1] if host.startswith("[") and host.endswith("]") else host)
    except ValueError:
        return None


def normalize(host: str) -> str:
    """Return an IP address in its shortest form without brackets, which is compared and bound; a name as it is."""
    return str(parse(host) or host)


def is_every(host: str) -> bool:
    """Return whether a server that binds `host` listens on all addresses of the machine."""
    address = parse(host)
    return not host or bool(address and address.is_unspecified)


def is_loopback(host: str) -> bool:
    """Return whether an address or a name, without a port, can be reached from this machine only."""
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    address = parse(name)
    return bool(address and address.is_loopback)


def in_url(host: str) -> str:
    """Return `host` as it is written before a port: an IPv6 address gets brackets."""
    return f"[{normalize(host)}]" if isinstance(parse(host), IPv6Address) else host
