"""Units of systemd for the parts of a home: `xc service systemd`."""

import re
import shutil
import subprocess
import sys

from data_contracts.errors import UsageError
from flows.services.definitions import ROOT
from flows.services.processes import START_SECONDS
from flows.services.service_manager import Part, Setup

LONGER_PAUSES_SINCE = 254    # the first version of systemd that lengthens the pause before each restart
# Left out: MemoryDenyWriteExecute, as torch and faiss make code; PrivateNetwork, as the parts meet on loopback.
HARDENING = """\
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
UMask=0077
ProtectSystem=strict
ProtectHome=read-only
ReadWritePaths={home}
PrivateTmp=yes
ProtectProc=invisible
ProtectClock=yes
ProtectHostname=yes
ProtectControlGroups=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
LockPersonality=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
"""


def units(setup: Setup) -> dict[str, str]:
    """Return the texts of a target and of a unit for each part, by file name; no unit holds a secret."""
    for text in (str(setup.home), setup.user, setup.model, sys.executable, str(ROOT)):
        if not text.isprintable():
            raise UsageError(f"{text!r} cannot be written into a unit", hint="name it without control characters")
    files = {f"{setup.prefix}.target": _target(setup)}
    for part in setup.parts():
        files[f"{setup.prefix}-{part.name}.service"] = _unit(setup, part)
    return files


def _target(setup: Setup) -> str:
    wanted = " ".join(f"{setup.prefix}-{part.name}.service" for part in setup.parts())
    return (f"[Unit]\nDescription=xcflow, all parts of {_literal(str(setup.home))}\nWants={wanted}\n\n"
            "[Install]\nWantedBy=multi-user.target\n")


def _unit(setup: Setup, part: Part) -> str:
    needed = [f"{setup.prefix}-{need}.service" for need in part.needs]
    home = str(setup.home)
    devices = "" if part.name == "worker-gpu" or setup.gpu else "PrivateDevices=yes\n"
    return "\n".join([
        "[Unit]",
        f"Description=xcflow {part.title} of {_literal(home)}",
        " ".join(["After=network.target", *needed]),
        *([f"Wants={' '.join(needed)}"] if needed else []),
        f"PartOf={setup.prefix}.target",
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        "Type=exec",
        f"User={setup.user}",
        f"WorkingDirectory={_literal(home)}",
        f"Environment={_quoted(f'PYTHONPATH={ROOT}')} XC_MANAGER=systemd",
        f"EnvironmentFile=-{_literal(home)}/service.env",
        f"ExecStart={_command(setup, 'run', part)}",
        f"ExecStartPost={_command(setup, 'wait', part)}",
        "Restart=always",
        *_pauses(),
        "SuccessExitStatus=130 143",
        f"TimeoutStartSec={START_SECONDS + 60:.0f}",
        f"TimeoutStopSec={part.stop:.0f}",
        "StandardOutput=journal",
        "StandardError=journal",
        f"SyslogIdentifier={setup.prefix}-{part.name}",
        "",
        HARDENING.format(home=_quoted(home)) + devices,
    ])


def _pauses() -> list[str]:
    """Return how long systemd waits before a restart: longer each time, where its version knows how."""
    if (version := systemd_version()) and version < LONGER_PAUSES_SINCE:
        return ["RestartSec=10"]
    return ["RestartSec=1", "RestartSteps=6", "RestartMaxDelaySec=60"]


def systemd_version() -> int:
    """Return the version of this machine's systemd, 0 where there is none."""
    if (program := shutil.which("systemd-analyze")) is None:
        return 0
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.match(r"systemd (\d+)", said)
    return int(found[1]) if found else 0


def _command(setup: Setup, doing: str, part: Part) -> str:
    words = [sys.executable, "-m", "flows.cli", *setup.words(doing, part.name)]
    return " ".join(_quoted(word.replace("$", "$$")) for word in words)


def _literal(text: str) -> str:
    """Return text as it is written where systemd takes the rest of a line; % begins a specifier."""
    return text.replace("%", "%%")


def _quoted(text: str) -> str:
    """Return a word as systemd's command lines and lists take it."""
    plain = _literal(text)
    if re.fullmatch(r"[A-Za-z0-9_@%+=:,./$-]+", plain):
        return plain
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'
