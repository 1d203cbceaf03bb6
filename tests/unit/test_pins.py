"""The pins of constraints.txt: pip installs files of known content alone, and an upgrade writes them anew."""

import re
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT
from tools import pin_hashes
from tools.pin_hashes import environments, hashes
from tools.sbom import pinned

LINE = re.compile(r"(?P<pin>\S+==\S+)(?P<hashes>( \\\n    --hash=sha256:[0-9a-f]{64})+)\n")


@pytest.mark.parametrize(("name", "fewest"), [("constraints.txt", 100), ("constraints-cuda.txt", 15)])
def test_every_pin_has_the_hashes_of_its_files(name, fewest):
    text = (ROOT / name).read_text()
    lines = [each["pin"] for each in LINE.finditer(text)]
    assert dict(each.split("==") for each in lines) == pinned(text) and len(lines) > fewest
    assert LINE.sub("", text) == f"{pin_hashes.HEAD}\n"    # there is nothing else in it
    assert f"--require-hashes -r {name}" in (ROOT / "Makefile").read_text()


def test_clean_removes_nothing_that_cannot_be_set_up_anew():
    """It is a remedy of `xc doctor`: .xc has reviewers' decisions and label edits, data/ the reader's own data."""
    recipe = (ROOT / "Makefile").read_text().partition("\nclean:\n")[2]
    assert recipe == "\trm -rf $(VENV)\n"


def test_all_that_torch_needs_is_pinned():
    """Of the build that is installed, and of the index's for Linux, which needs CUDA's libraries."""
    pins = [pinned((ROOT / name).read_text()) for name in ("constraints.txt", "constraints-cuda.txt")]
    assert not pins[0].keys() & pins[1].keys()
    for needed in metadata.requires("torch"):
        requirement = Requirement(needed)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            assert canonicalize_name(requirement.name) in pins[0] | pins[1], needed
    assert {"cuda-toolkit", "nvidia-cudnn-cu13", "nvidia-nccl-cu13", "triton"} < pins[1].keys()


def wheel(tags):
    return {"url": f"https://index.example/pack%2Dages/x-1.0-{tags}.whl", "hashes": {"sha256": tags}}


NATIVE = [f"cp311-cp311-{platform}" for platform in (
    "manylinux2014_x86_64.manylinux_2_17_x86_64", "manylinux_2_28_aarch64", "macosx_11_0_arm64", "macosx_10_9_x86_64")]
OTHERS = ["cp311-cp311-win_amd64", "cp311-cp311-musllinux_1_2_x86_64", "cp310-cp310-manylinux_2_28_x86_64",
          "cp314-cp314t-manylinux_2_28_x86_64", "pp311-pypy311_pp73-manylinux_2_28_x86_64", "cp311-cp311-linux_armv7l"]
SDIST = {"url": "https://index.example/x-1.0.tar.gz", "hashes": {"sha256": "source"}}


@pytest.mark.parametrize(("wheels", "found"), [
    (["py3-none-any"], {"py3-none-any"}),
    ([*NATIVE, *OTHERS], {*NATIVE, "source"}),    # other Pythons have none
    ([each.replace("cp311-cp311", "cp39-abi3") for each in NATIVE] + OTHERS,
     {each.replace("cp311-cp311", "cp39-abi3") for each in NATIVE}),
    (["py3-none-macosx_12_0_universal2", "py3-none-manylinux_2_28_x86_64"],
     {"py3-none-macosx_12_0_universal2", "py3-none-manylinux_2_28_x86_64", "source"}),
    ([], {"source"})])
def test_what_pip_may_take_is_listed_and_nothing_else(wheels, found):
    assert set(hashes({"wheels": [wheel(each) for each in wheels], "sdist": SDIST}, environments())) == found


def test_an_upgrade_changes_its_pin_and_keeps_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(pin_hashes, "ROOT", tmp_path)
    (tmp_path / "constraints.txt").write_text("b_c==1.0 \\\n    --hash=sha256:old\ntorch==1.0\n")
    (tmp_path / "torch-2.0+cpu-py3-none-any.whl").write_bytes(b"a build of our own")
    (tmp_path / "torch-1.0-py3-none-any.whl").write_bytes(b"of another version")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    needed = {"b-c": "1.0", "torch": "2.0", "cuda": "13.0"}

    def lock(requirements, constraints=None):
        assert (requirements, constraints) in [("b-c==1.0\ntorch==2.0\n", None),
                                               ("torch==2.0\n", "b-c==1.0\ntorch==2.0\n")]
        return {name: {"name": name, "version": version, "wheels": [wheel("py3-none-any")]}
                for name, version in needed.items() if constraints or name != "cuda"}

    monkeypatch.setattr(pin_hashes, "lock", lock)
    pin_hashes.main(["torch==2.0"])
    own = pin_hashes.file_digest(tmp_path / "torch-2.0+cpu-py3-none-any.whl")
    first, second = sorted([own, "py3-none-any"])
    assert (tmp_path / "constraints.txt").read_text() == (
        f"{pin_hashes.HEAD}\nb-c==1.0 \\\n    --hash=sha256:py3-none-any\n"
        f"torch==2.0 \\\n    --hash=sha256:{first} \\\n    --hash=sha256:{second}\n")
    assert (tmp_path / "constraints-cuda.txt").read_text() == (
        f"{pin_hashes.HEAD}\ncuda==13.0 \\\n    --hash=sha256:py3-none-any\n")
    with pytest.raises(SystemExit, match="'d>=2' is not NAME==VERSION"):
        pin_hashes.main(["d>=2"])
