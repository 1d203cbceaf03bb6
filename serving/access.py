"""Who may send requests to a server: its host names, and the token in a file."""

import re
import shlex
import stat
from collections.abc import Collection
from pathlib import Path

from data_contracts.errors import UsageError
from serving.http.guard import LOOPBACK, Access

TOKEN = 16    # least characters of a token


def make_access(host: str, token_file: Path | None, names: Collection[str]) -> Access:
    """Return who may send requests; raise UsageError for a public address without a token and host names.

    And for a name that no Host header is compared with: with a port, or an IPv6 address without brackets.
    """
    if wrong := [name for name in names if not re.fullmatch(r"[\w.-]+|\[[0-9A-Fa-f:.]+]", name, re.ASCII)]:
        raise UsageError(f"--allow-host takes a name without a port, got {wrong[0]!r}",
                         hint="write it as in an address: labels.example.org, or [fd00::1]")
    token = read_token(token_file) if token_file else ""
    if host not in {"127.0.0.1", "localhost", "::1"} and not (token and names):
        raise UsageError(f"{host} can be reached from other machines",
                         hint="add --token-file FILE and --allow-host NAME for each name that the server goes by")
    return Access(LOOPBACK | {name.lower() for name in names}, token)


def read_token(path: Path) -> str:
    """Return the token in a file; raise UsageError where others can read the file or the token is weak."""
    quoted = shlex.quote(str(path))
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {getattr(error, 'strerror', error)}",
                         hint=f"(umask 077; openssl rand -hex 32 > {quoted})") from error
    if mode & 0o077:
        raise UsageError(f"{path} can be read by others, its mode is {mode:04o}", hint=f"chmod 600 {quoted}")
    if len(token) < TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(f"the token in {path} is not {TOKEN} or more plain characters",
                         hint=f"(umask 077; openssl rand -hex 32 > {quoted})")
    return token
