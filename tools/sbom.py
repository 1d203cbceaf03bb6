"""The bill of materials of a release: what constraints.txt pins, as CycloneDX 1.6 JSON on stdout.

Run it in the environment that was installed from constraints.txt, whose metadata it reads; `make sbom` does. The same
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
    """Return the bill of a project that installs `pins`, name -> version; `about` is its table in pyproject.toml.

    Raises ValueError where another version is installed than is pinned.
    """
    found = {name: _installed(name, version) for name, version in pins.items()}
    refs = {name: f"pkg:pypi/{name}@{version}" for name, version in pins.items()}
    ours = f"pkg:pypi/{about['name']}@{about['version']}"
    needs = {ours: _needed(about["dependencies"], refs)} | {
        refs[name]: _needed(each.requires or [], refs) for name, each in found.items()}
    return {
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([ours, sorted(refs.values())]))}",
        "metadata": {"component": {"type": "application", "bom-ref": ours, "purl": ours, "name": about["name"],
                                   "version": about["version"],
                                   "licenses": [{"expression": about["license"]["text"]}]}},
        "components": [{"type": "library", "bom-ref": refs[name], "purl": refs[name], "name": name,
                        "version": pins[name], **_licence(each)} for name, each in found.items()],
        "dependencies": [{"ref": ref, "dependsOn": needed} for ref, needed in needs.items()]}


def pinned(text: str) -> dict[str, str]:
    """Return name -> version of the lines NAME==VERSION of constraints.txt."""
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
    """Return the refs of what is required here without extras, as far as it is pinned."""
    read = [Requirement(each) for each in requirements]
    return sorted({refs[name] for each in read if (name := canonicalize_name(each.name)) in refs
                   and (each.marker is None or each.marker.evaluate({"extra": ""}))})


def _licence(each: Distribution) -> dict[str, Any]:
    """Return the licence as the package states it: an SPDX expression, else a short text, else nothing."""
    about = each.metadata
    if expression := about.get("License-Expression"):
        return {"licenses": [{"expression": expression}]}
    names = [line.rpartition(" :: ")[2] for line in about.get_all("Classifier") or [] if line.startswith("License ::")]
    text = next((name for name in (*names, about.get("License") or "") if 0 < len(name) <= 80), "")
    return {"licenses": [{"license": {"name": text}}]} if text else {}


if __name__ == "__main__":
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    json.dump(bill(pinned((ROOT / "constraints.txt").read_text()), project), sys.stdout, indent=1)
    print()
