"""How the commands reach a cluster: name servers, who asks, and TLS.

Secrets are never arguments, which every user of a machine can see: they come from a file or from
the environment. A file of credentials is the ``tools.yml`` of RocketMQ's mqadmin, or properties:

    accessKey: operations
    secretKey: another-long-secret
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from oberth.cli.output import say
from oberth.errors import OptionError

if TYPE_CHECKING:
    import ssl

    from oberth.client.config import ClientConfig

F = TypeVar("F", bound=Callable[..., Any])

ACCESS_KEY_ENVIRONMENT: Final = "OBERTH_ACCESS_KEY"
SECRET_KEY_ENVIRONMENT: Final = "OBERTH_SECRET_KEY"
SECURITY_TOKEN_ENVIRONMENT: Final = "OBERTH_SECURITY_TOKEN"
TEXT_SIZE_MAX: Final = 64 * 1024
_META: Final = "oberth.cli.connection"
_KEYS: Final = ("accessKey", "secretKey", "securityToken")


def _keep(context: click.Context, parameter: click.Parameter, value: object) -> None:
    """Keep the option where `client_config` finds it; the command's function does not get it."""
    context.find_root().meta.setdefault(_META, {})[parameter.name] = value


_OPTIONS: Final = (
    click.option(
        "--credentials",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False),
        envvar="OBERTH_CREDENTIALS",
        show_envvar=True,
        expose_value=False,
        callback=_keep,
        help="accessKey and secretKey to sign with, as in mqadmin's tools.yml; "
        f"or {ACCESS_KEY_ENVIRONMENT} and {SECRET_KEY_ENVIRONMENT}.",
    ),
    click.option(
        "--tls",
        is_flag=True,
        envvar="OBERTH_TLS",
        show_envvar=True,
        expose_value=False,
        callback=_keep,
        help="Connect with TLS and check certificates.",
    ),
    click.option(
        "--tls-ca",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False),
        envvar="OBERTH_TLS_CA",
        show_envvar=True,
        expose_value=False,
        callback=_keep,
        help="Connect with TLS; trust certificates that these PEM certificates signed.",
    ),
    click.option(
        "--tls-cert",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False),
        envvar="OBERTH_TLS_CERT",
        show_envvar=True,
        expose_value=False,
        callback=_keep,
        help="Connect with TLS and show this certificate; PEM, with its key.",
    ),
    click.option(
        "--tls-insecure",
        is_flag=True,
        expose_value=False,
        callback=_keep,
        help="Connect with TLS and check no certificate, as RocketMQ's test certificates need.",
    ),
)
_NAMESRV: Final = click.option(
    "-n",
    "--namesrv",
    metavar="HOST:PORT",
    envvar="NAMESRV_ADDR",
    default="127.0.0.1:9876",
    show_default=True,
    help="Name servers, joined by ';'.",
)


def namesrv_option(command: F) -> F:
    """-n, and the options that `client_config` reads."""
    for decorate in (*reversed(_OPTIONS), _NAMESRV):
        command = decorate(command)
    return command


def client_config(namesrv: str) -> ClientConfig:
    """The connection to a cluster that the options and the environment describe.

    Raises:
        OptionError: a file that cannot be used, or half a pair of keys.
    """
    from oberth.client.config import ClientConfig

    context = click.get_current_context(silent=True)
    options = {} if context is None else context.find_root().meta.get(_META, {})
    keys = _credentials(options.get("credentials"), os.environ)
    return ClientConfig(
        namesrv_addr=namesrv,
        access_key=keys["accessKey"],
        secret_key=keys["secretKey"],
        security_token=keys["securityToken"],
        tls_context=_tls_context(options),
    )


def tls_words(tls_mode: str, trust_cert_path: str, environment: Mapping[str, str]) -> list[str]:
    """Options by which a command asks servers of this configuration as they ask each other.

    None where the command needs none, or where the environment says how it connects.
    """
    if any(environment.get(name) for name in ("OBERTH_TLS", "OBERTH_TLS_CA", "OBERTH_TLS_CERT")):
        return []
    if trust_cert_path:
        return ["--tls-ca", trust_cert_path]
    return ["--tls-insecure"] if tls_mode == "enforcing" else []


def _credentials(path: str | None, environment: Mapping[str, str]) -> dict[str, str]:
    if path is not None:
        keys = read_credentials(path)
        source = path
    else:
        names = (ACCESS_KEY_ENVIRONMENT, SECRET_KEY_ENVIRONMENT, SECURITY_TOKEN_ENVIRONMENT)
        keys = {key: environment.get(name, "") for key, name in zip(_KEYS, names, strict=True)}
        source = "the environment"
    if bool(keys["accessKey"]) != bool(keys["secretKey"]):
        missing = "secretKey" if keys["accessKey"] else "accessKey"
        raise OptionError(f"{source}: {missing} is missing; a signature needs both keys")
    return keys


def read_credentials(path: str) -> dict[str, str]:
    """accessKey, secretKey and securityToken of a file; "" for those that it lacks.

    Raises:
        OptionError: it is too large or no text, or a line of it is no ``name: value`` or
            ``name=value``.
    """
    if os.stat(path).st_mode & (stat.S_IRGRP | stat.S_IROTH):
        say(f"warning: {path} can be read by others (chmod 600)")
    found = dict.fromkeys(_KEYS, "")
    for number, line in enumerate(read_text(path).splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        at = min((at for at in (text.find(":"), text.find("=")) if at > 0), default=-1)
        if at < 0:
            # Not the line itself: it may be the secret.
            raise OptionError(f"{path}, line {number}: neither name: value nor name=value")
        name, value = text[:at].strip(), text[at + 1 :].strip()
        if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        if name in found:
            found[name] = value
    return found


def read_text(path: str, size_max: int = TEXT_SIZE_MAX) -> str:
    """The text of a file that an option names; ``-`` is stdin.

    Args:
        path: the file, or a pipe.
        size_max: bytes that it may have.

    Raises:
        OptionError: it has more, or is not in UTF-8.
    """
    with click.open_file(path, "rb") as file:
        data: bytes = file.read(size_max + 1)
    if len(data) > size_max:
        raise OptionError(f"{path}: more than {size_max} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        # Not the bytes themselves: they may be a secret.
        raise OptionError(f"{path}: byte {error.start} is no UTF-8") from None


def _tls_context(options: Mapping[str, Any]) -> ssl.SSLContext | None:
    authorities, certificate = options.get("tls_ca"), options.get("tls_cert")
    insecure = bool(options.get("tls_insecure"))
    if not (options.get("tls") or authorities or certificate or insecure):
        return None
    import ssl

    if insecure and authorities:
        raise OptionError("--tls-ca says whom to trust, --tls-insecure to trust everybody")
    try:
        context = ssl.create_default_context(cafile=authorities)
        if insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if certificate:
            context.load_cert_chain(certificate)
    except (OSError, ssl.SSLError) as error:
        raise OptionError(f"TLS, {certificate or authorities}: {error}") from None
    return context
