"""The pins of constraints.txt: pip installs files of known content alone, and an upgrade writes them anew."""

import re

import pytest

from tests.conftest import ROOT
from tools import pin_hashes
from tools.pin_hashes import environments, hashes
from tools.sbom import pinned

LINE = re.compile(r"(?P<pin>\S+==\S+)(?P<hashes>( \\\n    --hash=sha256:[0-9a-f]{64})+)\n")


def test_every_pin_has_the_hashes_of_its_files():
    text = (ROOT / "constraints.txt").read_text()
    lines = [each["pin"] for each in LINE.finditer(text)]
    assert dict(each.split("==") for each in lines) == pinned(text) and len(lines) > 100
    assert LINE.sub("", text) == f"{pin_hashes.HEAD}\n"    # there is nothing else in it
    assert "--require-hashes -r constraints.txt" in (ROOT / "Makefile").read_text()


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
    index = {"b-c": "1.0", "d": "2.0"}
    monkeypatch.setattr(pin_hashes, "ROOT", tmp_path)
    (tmp_path / "constraints.txt").write_text("b_c==1.0 \\\n    --hash=sha256:old\nd==1.0\n")
    (tmp_path / "d-2.0+cpu-py3-none-any.whl").write_bytes(b"a build of our own")
    (tmp_path / "d-1.0-py3-none-any.whl").write_bytes(b"of another version")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))

    def lock(requirements):
        assert requirements == "b-c==1.0\nd==2.0\n"
        return {"packages": [{"name": name, "version": version, "wheels": [wheel("py3-none-any")]}
                             for name, version in index.items()]}

    monkeypatch.setattr(pin_hashes, "lock", lock)
    pin_hashes.main(["d==2.0"])
    own = pin_hashes.file_digest(tmp_path / "d-2.0+cpu-py3-none-any.whl")
    first, second = sorted([own, "py3-none-any"])
    assert (tmp_path / "constraints.txt").read_text() == (
        f"{pin_hashes.HEAD}\nb-c==1.0 \\\n    --hash=sha256:py3-none-any\n"
        f"d==2.0 \\\n    --hash=sha256:{first} \\\n    --hash=sha256:{second}\n")
    with pytest.raises(SystemExit, match="'d>=2' is not NAME==VERSION"):
        pin_hashes.main(["d>=2"])
