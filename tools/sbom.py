"""Print the bill of materials of a release: what it installs from constraints.txt, as CycloneDX 1.6 JSON.

It reads the metadata of installed packages: run it where constraints.txt is installed, as `make sbom` does. The same
pins give the same bytes. cyclonedx-py lists what is installed, tests' tools included, and links packages whatever the
markers and extras of their requirements say; from the pins alone it tells no licence and no link.
"""

import json
import re
import sys
import tomllib
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
SPDX = {"MIT License": "MIT", "ISC License (ISCL)": "ISC"}    # classifiers that can mean one licence alone


def bill(pins: Mapping[str, str], about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bill of materials; pins: name -> version. about: the table [project] of pyproject.toml.

    Listed is what the dependencies and, as optional, the extras but `dev` install in this environment.
    Raises ValueError where the installed version is not the pinned one.
    """
    packages = {name: _installed(name, version) for name, version in pins.items()}
    required = about["dependencies"]
    extras = [each for name, needed in about["optional-dependencies"].items() if name != "dev" for each in needed]
    always, links = _links(required, packages), _links([*required, *extras], packages)
    ours = f"pkg:pypi/{about['name']}@{about['version']}"
    refs = {"": ours} | {name: f"pkg:pypi/{name}@{pins[name]}" for name in sorted(links.keys() - {""})}
    return {
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([ours, sorted(refs.values())]))}",
        "metadata": {"component": {"type": "application", "bom-ref": ours, "purl": ours, "name": about["name"],
                                   "version": about["version"],
                                   "licenses": [{"expression": about["license"]["text"]}]}},
        "components": [{"type": "library", "bom-ref": ref, "purl": ref, "name": name, "version": pins[name],
                        "scope": "required" if name in always else "optional", **_licence(packages[name])}
                       for name, ref in refs.items() if name],
        "dependencies": [{"ref": ref, "dependsOn": sorted(refs[needed] for needed in links[name])}
                         for name, ref in refs.items()]}


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


def _links(requirements: Iterable[str], packages: Mapping[str, Distribution]) -> dict[str, set[str]]:
    """Return name -> the pinned packages that it needs in this environment, for all that the requirements lead to.

    The name of what has the requirements is "". An extra counts for a package where one of these asks for it.
    """
    links: dict[str, set[str]] = {}
    asked, todo = set(), [("", "", requirements)]
    while todo:
        name, extra, needed = todo.pop()
        found = [each for each in map(Requirement, needed) if canonicalize_name(each.name) in packages
                 and (each.marker is None or each.marker.evaluate({"extra": extra}))]
        links.setdefault(name, set()).update(canonicalize_name(each.name) for each in found)
        new = {(canonicalize_name(each.name), of) for each in found for of in ("", *each.extras)} - asked
        asked |= new
        todo += [(each, of, packages[each].requires or ()) for each, of in new]
    return links


def _licence(package: Distribution) -> dict[str, Any]:
    """Return the licence in the package's metadata: an SPDX expression, else a short text, else {}."""
    about = package.metadata
    names = [line.rpartition(" :: ")[2] for line in about.get_all("Classifier") or [] if line.startswith("License ::")]
    known = SPDX.get(names[0]) if len(names) == 1 else None
    for text in filter(None, (about.get("License-Expression"), about.get("License"), known)):
        with suppress(InvalidLicenseExpression):
            return {"licenses": [{"expression": canonicalize_license_expression(text)}]}
    text = next((text for text in ("; ".join(names), about.get("License") or "") if 0 < len(text) <= 120), "")
    return {"licenses": [{"license": {"name": text}}]} if text else {}


if __name__ == "__main__":
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    json.dump(bill(pinned((ROOT / "constraints.txt").read_text()), project), sys.stdout, indent=1)
    print()
