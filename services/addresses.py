"""Addresses of servers as settings, URLs and `Host` headers write them."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address


def parsed(host: str) -> IPv4Address | IPv6Address | None:
    """The IP address that `host` is, with brackets around it or without; None for a name."""
    try:
        return ip_address(host[1:-1] if host.startswith("[") and host.endswith("]") else host)
    except ValueError:
        return None


def bare(host: str) -> str:
    """`host` in the one way that an IP address is compared and bound by: in short, without brackets."""
    return str(parsed(host) or host)


def is_every(host: str) -> bool:
    """Whether a server that binds `host` has all of the machine's addresses."""
    address = parsed(host)
    return not host or bool(address and address.is_unspecified)


def in_url(host: str) -> str:
    """`host` as it stands before a port: an address of IPv6 in brackets."""
    return f"[{bare(host)}]" if isinstance(parsed(host), IPv6Address) else host
