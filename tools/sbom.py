"""Print the bill of materials of a release: the packages in constraints.txt, as CycloneDX 1.6 JSON.

It reads the metadata of installed packages: run it where constraints.txt is installed, as `make sbom` does. The same
pins give the same bytes.
"""

import json
import re
import sys
import tomllib
import uuid
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent


def bill(pins: dict[str, str], about: dict[str, Any]) -> dict[str, Any]:
    """Return the bill of materials; pins: name -> version. about: the table [project] of pyproject.toml.

    Raises ValueError where the installed version is not the pinned one.
    """
    packages = {name: _installed(name, version) for name, version in pins.items()}
    refs = {name: f"pkg:pypi/{name}@{version}" for name, version in pins.items()}
    ours = f"pkg:pypi/{about['name']}@{about['version']}"
    needs = {ours: _needed(about["dependencies"], refs)} | {
        refs[name]: _needed(package.requires or [], refs) for name, package in packages.items()}
    return {
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([ours, sorted(refs.values())]))}",
        "metadata": {"component": {"type": "application", "bom-ref": ours, "purl": ours, "name": about["name"],
                                   "version": about["version"],
                                   "licenses": [{"expression": about["license"]["text"]}]}},
        "components": [{"type": "library", "bom-ref": refs[name], "purl": refs[name], "name": name,
                        "version": pins[name], **_licence(package)} for name, package in packages.items()],
        "dependencies": [{"ref": ref, "dependsOn": needed} for ref, needed in needs.items()]}


def pinned(text: str) -> dict[str, str]:
    """Return name -> version from the lines NAME==VERSION of a constraints file."""
    return {canonicalize_name(name): version
            for name, version in re.findall(r"^([A-Za-z0-9][\w.-]*)==([^\s;]+)", text, re.MULTILINE)}


def _installed(name: str, version: str) -> Distribution:
    try:
        found = distribution(name)
    except PackageNotFoundError as error:
        raise ValueError(f"{name}=={version} is pinned but not installed; run: make sbom") from error
    if found.version.partition("+")[0] != version.partition("+")[0]:
        raise ValueError(f"{name}=={version} is pinned and {found.version} installed; run: make sbom")
    return found


def _needed(requirements: list[str], refs: dict[str, str]) -> list[str]:
    """Return the refs of the pinned packages that these requirements name in this environment, without extras."""
    parsed = map(Requirement, requirements)
    return sorted({refs[name] for requirement in parsed if (name := canonicalize_name(requirement.name)) in refs
                   and (requirement.marker is None or requirement.marker.evaluate({"extra": ""}))})


def _licence(package: Distribution) -> dict[str, Any]:
    """Return the licence in the package's metadata: an SPDX expression, else a short text, else {}."""
    about = package.metadata
    if expression := about.get("License-Expression"):
        return {"licenses": [{"expression": expression}]}
    names = [line.rpartition(" :: ")[2] for line in about.get_all("Classifier") or [] if line.startswith("License ::")]
    text = next((name for name in (*names, about.get("License") or "") if 0 < len(name) <= 80), "")
    return {"licenses": [{"license": {"name": text}}]} if text else {}


if __name__ == "__main__":
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    json.dump(bill(pinned((ROOT / "constraints.txt").read_text()), project), sys.stdout, indent=1)
    print()
