"""The program that Ray Serve starts as HAProxy: what Serve's configuration leaves open is closed, then HAProxy runs.

`python haproxy.py BINARY [CERTIFICATE KEY] -- -f CONFIGURATION ...`. Serve has no setting for the addresses of the
statistics, the mode of the admin socket, or TLS in front of HAProxy; it writes the file anew before each start. This
file is run by itself, in an interpreter that is there for milliseconds: it imports nothing of ours.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

FRONTEND = "http_frontend"  # its name in Serve's configuration
TLS = "ssl crt {file} ssl-min-ver TLSv1.2 alpn http/1.1"


def closed(configuration: str, certificate: Path | None = None) -> str:
    """`configuration` with statistics on the loopback address, an admin socket for this user alone, and TLS by the PEM
    file `certificate`. The same again for what is closed already. Raises ValueError where Serve writes another file."""
    made, sockets = re.subn(r"(?m)^(\s*stats socket .*) mode \d+", r"\1 mode 600", configuration)
    made = re.sub(r"(?m)^(\s*bind) \*?:(\d+)", r"\1 127.0.0.1:\2", made)
    made, frontends = re.subn(rf"(?m)^(frontend {FRONTEND}\n\s*bind \S+).*$", rf"\1{_tls(certificate)}", made)
    if (sockets, frontends) != (1, 1):
        raise ValueError(
            f"Serve's configuration has {sockets} admin sockets and {frontends} of {FRONTEND}, not one each"
        )
    return made


def _tls(certificate: Path | None) -> str:
    return " " + TLS.format(file=certificate) if certificate else ""


def main(arguments: list[str]) -> None:
    split = arguments.index("--")
    (binary, *files), given = arguments[:split], arguments[split + 1 :]
    configuration = Path(given[given.index("-f") + 1])
    certificate = configuration.with_name("certificate.pem") if files else None
    if certificate:  # HAProxy takes certificate and key from one file
        _write(certificate, "\n".join(Path(file).read_text() for file in dict.fromkeys(files)))
    _write(configuration, closed(configuration.read_text(), certificate))
    os.execv(binary, [binary, *given])


def _write(file: Path, text: str) -> None:
    """Whole or not at all, for this user alone."""
    new = file.with_name(f"{file.name}.{os.getpid()}")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as opened:
        opened.write(text)
    new.replace(file)


if __name__ == "__main__":
    main(sys.argv[1:])
