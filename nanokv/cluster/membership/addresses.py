"""The URL of a registry, taken apart."""

import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from nanokv.cluster.membership.base import is_name
from nanokv.errors import InvalidArgument

ETCD_PORT = 2379
PASSWORD_VARIABLE = "NANOKV_REGISTRY_PASSWORD"  #: for a URL that names a user and no password
FORMS = "etcd://host:port[,host:port...]/name, etcds:// likewise, or file:///absolute/folder"


@dataclass(frozen=True)
class EtcdAddress:
    """Where an etcd is, how it is entered, and the name of the cluster in it."""

    endpoints: tuple[tuple[str, int], ...]
    name: str
    user: str | None = None
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None

    def __str__(self) -> str:
        return "etcd at " + ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.endpoints
        )


@dataclass(frozen=True)
class FolderAddress:
    """A folder that all processes of the cluster see."""

    path: Path

    def __str__(self) -> str:
        return f"the folder {self.path}"


def masked(url: str) -> str:
    """A URL as it may be shown: `***` in place of a password, and of all that may be one."""
    scheme, colon, rest = url.partition("://")
    credentials, at, hosts = rest.rpartition("@")
    if not at:
        return url
    user, _, password = credentials.partition(":")
    return f"{scheme}{colon}{user}{':***' if password else ''}@{hosts}"


def has_password(url: str) -> bool:
    """Whether a URL names a password: who sees the command line, or a log of it, has it then."""
    return masked(url) != url


def parse(url: object) -> EtcdAddress | FolderAddress:
    """Take the URL of a registry apart. No error repeats the URL: it may have a password.

    Raises:
        InvalidArgument: it is none, or names files for TLS that cannot be used.
    """
    if not isinstance(url, str):
        raise InvalidArgument(f"the URL of a registry is a string, not {type(url).__name__}")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise InvalidArgument(f"this is no URL of a registry: it has the form {FORMS}") from None
    if parts.fragment:
        raise InvalidArgument("the URL of a registry has no part after #; write %23 for the character")
    if parts.scheme in ("etcd", "etcds"):
        return _etcd(parts)
    if parts.scheme == "file":
        return _folder(parts)
    raise InvalidArgument(f"a registry has a URL of the form {FORMS}, not one of scheme {parts.scheme!r}")


def _folder(parts: SplitResult) -> FolderAddress:
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise InvalidArgument("the folder of a registry is absolute, with three slashes: file:///absolute/folder")
    if parts.query:
        raise InvalidArgument("a file:// URL has no options; write %3F for the character ?")
    path = unquote(parts.path)
    if "\0" in path or path.strip("/") == "":
        raise InvalidArgument("a file:// URL names a folder of its own: file:///absolute/folder")
    return FolderAddress(Path(path))


def _etcd(parts: SplitResult) -> EtcdAddress:
    name = parts.path.removeprefix("/")
    if not is_name(name):
        shown = "another path; in a user or a password / is %2F" if "@" in parts.path else repr(parts.path)
        raise InvalidArgument(
            f"the URL of an etcd ends with the name of the cluster, 1 to 64 characters of A-Z a-z 0-9 . _ -: "
            f"{parts.scheme}://host:port/name, not with {shown}"
        )
    credentials, at, hosts = parts.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    if at and not user:
        raise InvalidArgument("the URL of an etcd names no user before its @")
    return EtcdAddress(
        tuple(_endpoint(host) for host in hosts.split(",")),
        name,
        unquote(user) if at else None,
        unquote(password) or (os.environ.get(PASSWORD_VARIABLE, "") if at else ""),
        _tls(parts),
    )


def _endpoint(text: str) -> tuple[str, int]:
    """A host with or without a port; IPv6 in brackets."""
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    host, port = (host, port) if colon else (text, str(ETCD_PORT))
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    wrong = not bare or (":" in bare) != (bare != host) or not bare.isascii() or any(c in bare for c in "[]/ @")
    if wrong or not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        shown = text if not port or port.isdigit() else f"{host}:***"  # it may be a user, and a password with a slash
        raise InvalidArgument(f"{shown!r} is no host:port of an etcd")
    return bare, int(port)


def _tls(parts: SplitResult) -> ssl.SSLContext | None:
    try:
        given = parse_qs(parts.query, strict_parsing=bool(parts.query), keep_blank_values=True)
    except ValueError:
        raise InvalidArgument("the options of an etcds:// URL have the form ?ca=FILE&cert=FILE&key=FILE") from None
    if parts.scheme == "etcd":
        if given:
            raise InvalidArgument(f"options {sorted(given)} are for TLS: write etcds://")
        return None
    options = {option: values[-1] for option, values in given.items()}
    unknown = sorted(options.keys() - {"ca", "cert", "key"})
    if unknown:
        raise InvalidArgument(f"an etcds:// URL has options ca, cert and key, not {unknown}")
    if ("cert" in options) != ("key" in options):
        raise InvalidArgument("options cert and key of an etcds:// URL go together")
    return _context(options.get("ca"), options.get("cert"), options.get("key"))


def _context(ca: str | None, cert: str | None, key: str | None) -> ssl.SSLContext:
    """Checks certificates of etcd against `ca`, or against those that the system trusts."""
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert is not None:
            context.load_cert_chain(cert, key, password=lambda: "")  # an encrypted key is an error, not a question
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"the files ca={ca} cert={cert} key={key} cannot be used for TLS: {error}") from None
    context.set_alpn_protocols(["http/1.1"])
    return context
