"""Rewrite constraints.txt: each pin with the sha256 of every file that pip may install for it.

    python -m tools.pin_hashes [NAME==VERSION ...]

The arguments replace or add pins. What the index's torch needs beyond them, CUDA's libraries on Linux, is pinned in
constraints-cuda.txt, which builds of torch for CPUs alone do without. Needs `uv` on the path, which asks the package
index for the files. Listed are files for CPython 3.11 to 3.14 on Linux (x86-64, arm64) and macOS, and wheels in the
folders that PIP_FIND_LINKS names, such as a build of torch for CPUs only.
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
GLIBC, MACOS = 40, 26    # newest versions whose wheels are accepted: glibc 2.40, macOS 26

Packages = dict[str, dict[str, Any]]


def platforms() -> list[list[str]]:
    """Return the platform tags of each supported platform, the newest first."""
    linux = [[*(f"manylinux_2_{minor}_{machine}" for minor in range(GLIBC, 4, -1)),
              *(f"{name}_{machine}" for name in ("manylinux2014", "manylinux2010", "manylinux1", "linux"))]
             for machine in ("x86_64", "aarch64")]
    return [*linux, *(list(mac_platforms((MACOS, 0), machine)) for machine in ("arm64", "x86_64"))]


def environments() -> list[set[Tag]]:
    """Return the tags of compatible wheels, for each Python on each platform."""
    return [{*cpython_tags(python, platforms=tags), *compatible_tags(python, f"cp{python[0]}{python[1]}", tags)}
            for python in PYTHONS for tags in platforms()]


def hashes(package: Mapping[str, Any], environments: Iterable[set[Tag]]) -> Iterator[str]:
    """Yield the sha256 of each file of a package in a pylock.toml that pip may install in one of the environments.

    The source distribution is included if an environment has no compatible wheel.
    """
    wheels = [(parse_wheel_filename(file_name(wheel["url"]))[3], wheel["hashes"]["sha256"])
              for wheel in package.get("wheels", [])]
    compatible = [[sha256 for tags, sha256 in wheels if tags & environment] for environment in environments]
    yield from (sha256 for hashes in compatible for sha256 in hashes)
    if not all(compatible) and "sdist" in package:
        yield package["sdist"]["hashes"]["sha256"]


def file_name(url: str) -> str:
    """Return the file name in a URL."""
    return unquote(urlsplit(url).path.rpartition("/")[2])


def local_wheels(folders: Iterable[Path], pins: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (name, sha256) of each wheel in `folders` that matches a pin, with or without its local version."""
    for path in sorted(path for folder in folders for path in folder.glob("*.whl")):
        try:
            name, version, *_ = parse_wheel_filename(path.name)
        except InvalidWheelFilename:
            continue
        if pins.get(name) in (version.public, str(version)):
            yield name, file_digest(path)


def lock(requirements: str, constraints: str | None = None) -> Packages:
    """Return the packages of requirements, one NAME==VERSION a line, as pylock.toml has them, from the package index.

    constraints: where given, what the requirements need is locked with them, at these versions where it is listed.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, limits, target = (Path(folder) / name for name in ("in.txt", "constraints.txt", "pylock.toml"))
        source.write_text(requirements)
        limits.write_text(constraints or "")
        subprocess.run(["uv", "pip", "compile", "--quiet", *(["--no-deps"] if constraints is None else []),
                        "--universal", "--python-version", OLDEST, "--constraint", str(limits),
                        "--format", "pylock.toml", "--output-file", str(target), str(source)], check=True)
        packages = tomllib.loads(target.read_text())["packages"]
        return {canonicalize_name(package["name"]): package for package in packages}


def block(package: Mapping[str, Any], more: Iterable[str] = ()) -> str:
    """Return the lines of a pin: name and version, and the sha256 of each file, `more` of them from elsewhere."""
    digests = sorted({*hashes(package, environments()), *more})
    return " \\\n    ".join([f"{canonicalize_name(package['name'])}=={package['version']}",
                            *(f"--hash=sha256:{sha256}" for sha256 in digests)])


def main(upgrades: list[str]) -> None:
    """Rewrite constraints.txt with upgrades, each NAME==VERSION, and constraints-cuda.txt."""
    if invalid := [pin for pin in upgrades if not re.fullmatch(r"[\w.-]+==[\w.]+", pin)]:
        sys.exit(f"{invalid[0]!r} is not NAME==VERSION")
    path, cuda_path = ROOT / "constraints.txt", ROOT / "constraints-cuda.txt"
    pins = pinned(path.read_text()) | pinned("\n".join(upgrades))
    requirements = "".join(f"{name}=={version}\n" for name, version in sorted(pins.items()))
    packages, folders = lock(requirements), os.environ.get("PIP_FIND_LINKS", "").split()
    local = list(local_wheels([Path(name) for name in folders if Path(name).is_dir()], pins))
    cuda = lock(f"torch=={pins['torch']}\n", requirements)
    path.write_text("\n".join([HEAD, *(
        block(packages[name], [sha256 for other, sha256 in local if other == name]) for name in sorted(pins)), ""]))
    cuda_path.write_text("\n".join([HEAD, *(block(cuda[name]) for name in sorted(cuda.keys() - pins)), ""]))


if __name__ == "__main__":
    main(sys.argv[1:])
