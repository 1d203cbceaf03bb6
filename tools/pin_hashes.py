"""Writes constraints.txt anew: each pin with the sha256 of every file that pip may take for it.

    python -m tools.pin_hashes [NAME==VERSION ...]

Versions that are given replace those that are pinned; a new name is added. Needs `uv` on the path, which asks the
package index for the files. Those for CPython 3.11 to 3.14 on Linux (x86-64, arm64) and macOS are listed, and those
in the folders that PIP_FIND_LINKS names, such as a build of torch for CPUs alone.
"""

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.tags import Tag, compatible_tags, cpython_tags, mac_platforms
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from tasks.core.files import file_digest
from tools.sbom import ROOT, pinned

HEAD = "# Written by tools/pin_hashes.py, as upgrades are: make pins PINS=NAME==VERSION"
OLDEST, PYTHONS = "3.11.5", [(3, minor) for minor in range(11, 15)]
GLIBC, MACOS = 40, 26    # the newest 2.x of glibc, and the newest macOS, whose wheels are known


def platforms() -> list[list[str]]:
    """Return the tags of each platform that xcflow is installed on, the newest first."""
    linux = [[*(f"manylinux_2_{minor}_{machine}" for minor in range(GLIBC, 4, -1)),
              *(f"{name}_{machine}" for name in ("manylinux2014", "manylinux2010", "manylinux1", "linux"))]
             for machine in ("x86_64", "aarch64")]
    return [*linux, *(list(mac_platforms((MACOS, 0), machine)) for machine in ("arm64", "x86_64"))]


def environments() -> list[set[Tag]]:
    """Return the tags of wheels that fit, for each Python on each platform."""
    return [{*cpython_tags(python, platforms=tags), *compatible_tags(python, f"cp{python[0]}{python[1]}", tags)}
            for python in PYTHONS for tags in platforms()]


def hashes(package: Mapping[str, Any], fits: Iterable[set[Tag]]) -> Iterator[str]:
    """Yield the sha256 of each file of a package in a pylock.toml that pip may take in one of the environments.

    The source distribution is among them where an environment has no wheel.
    """
    wheels = [(parse_wheel_filename(name_of(each["url"]))[3], each) for each in package.get("wheels", [])]
    served = [[each["hashes"]["sha256"] for tags, each in wheels if tags & environment] for environment in fits]
    yield from (sha256 for each in served for sha256 in each)
    if not all(served) and "sdist" in package:
        yield package["sdist"]["hashes"]["sha256"]


def name_of(url: str) -> str:
    """Return the name of the file at an address."""
    return unquote(urlsplit(url).path.rpartition("/")[2])


def local(folders: Iterable[Path], pins: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (name, sha256) of each wheel in `folders` that pip takes for a pin, whatever its local version."""
    for path in sorted(path for folder in folders for path in folder.glob("*.whl")):
        try:
            name, version, *_ = parse_wheel_filename(path.name)
        except InvalidWheelFilename:
            continue
        if pins.get(name) in (version.public, str(version)):
            yield name, file_digest(path)


def listed(lines: str) -> dict[str, Any]:
    """Return what the index has for requirements, NAME==VERSION a line, as a pylock.toml says it."""
    with tempfile.TemporaryDirectory() as folder:
        asked, found = Path(folder) / "asked.txt", Path(folder) / "pylock.toml"
        asked.write_text(lines)
        subprocess.run(["uv", "pip", "compile", "--quiet", "--no-deps", "--universal", "--python-version", OLDEST,
                        "--format", "pylock.toml", "--output-file", str(found), str(asked)], check=True)
        return tomllib.loads(found.read_text())


def main(given: list[str]) -> None:
    """Write the file."""
    if strange := [each for each in given if not re.fullmatch(r"[\w.-]+==[\w.]+", each)]:
        sys.exit(f"{strange[0]!r} is not NAME==VERSION")
    path = ROOT / "constraints.txt"
    pins = pinned(path.read_text()) | pinned("\n".join(given))
    lock = listed("".join(f"{name}=={version}\n" for name, version in sorted(pins.items())))
    folders = [Path(each) for each in os.environ.get("PIP_FIND_LINKS", "").split() if Path(each).is_dir()]
    fits, more = environments(), list(local(folders, pins))
    packages = {canonicalize_name(each["name"]): each for each in lock["packages"]}
    blocks = []
    for name, version in sorted(pins.items()):
        found = {*hashes(packages[name], fits), *(sha256 for other, sha256 in more if other == name)}
        blocks.append(" \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{each}" for each in sorted(found))]))
    path.write_text("\n".join([HEAD, *blocks, ""]))


if __name__ == "__main__":
    main(sys.argv[1:])
