"""`xc doctor`: what it looks at, and that each fault it is there for is seen and told with a remedy."""

import json
import os

import pytest

from flows.cli.doctor import Check, packages, servers, state
from tasks.core.store import Store
from tests.support.tiny import mlflow_server


def told(checks):
    return {each.name: (each.well, each.told, each.hint) for each in checks}


def test_all_is_well_here(cli, tmp_path, monkeypatch):
    for name in ("PREFECT_API_URL", "XC_MLFLOW"):
        monkeypatch.delenv(name, raising=False)
    code, out, err = cli("doctor", "--json", "--home", "home")
    found = {each["name"]: each for each in json.loads(out)}
    assert {"python", "torch", "fastapi", "sqlalchemy", "cores", "memory", "gpu", "disk", "home", "servers"} <= {*found}
    wrong = [each for each in found.values() if not each["well"]]
    assert code == (1 if wrong else 0) and all(each["name"] in err and each["hint"] for each in wrong)
    assert "is not there yet" in found["home"]["told"] and not list(tmp_path.iterdir())
    assert found["fastapi"]["told"].startswith("0.") and "hypothesis" not in found


def test_a_fault_is_a_line_with_a_remedy_and_exit_code_1(cli, tmp_path):
    Store(tmp_path / "home")
    (tmp_path / "home" / "FORMAT").write_text("99\n")
    code, out, err = cli("doctor", "--home", "home", "--mlflow", "http://me:secret@127.0.0.1:9")
    lines = out.splitlines()
    assert code == 1 and "things are wrong: " in err and "home" in err
    [home] = [n for n, line in enumerate(lines) if line.startswith("WRONG") and line.split()[1] == "home"]
    assert "newer version" in lines[home] and lines[home + 1].strip().startswith("hint: ")
    assert "does not answer at http://127.0.0.1:9" in out and "secret" not in out + err


@pytest.mark.parametrize(("wanted", "well", "said"), [
    ("fastapi>=0.1", True, "0."), ("no-such-package>=2", False, "is not installed, >=2 is wanted"),
    ("psutil<1", False, "<1 is wanted"), ('no-such-package>=2; extra == "dev"', None, "")])
def test_a_version_is_held_against_what_is_wanted(wanted, well, said):
    found = list(packages([wanted]))
    assert [each.well for each in found] == ([] if well is None else [well])
    assert all(said in each.told and (well or "pip install" in each.hint) for each in found)


def test_a_pin_that_breaks_in_silence_is_named_with_what_breaks(tmp_path, monkeypatch):
    """Newer metadata than what is installed, found first."""
    for name, version in (("fastapi", "0.151.0"), ("sqlalchemy", "2.1.3")):
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = told(packages(["fastapi", "sqlalchemy>=2.0"]))
    assert found["fastapi"] == (False, "0.151.0, <0.151 is wanted: the Prefect server cannot be imported",
                                "pip install --no-deps --require-hashes -r constraints.txt")
    assert found["sqlalchemy"][:2] == (
        False, "2.1.3, <2.1,>=2.0 is wanted: the Prefect server never creates scheduled runs")


def test_one_fault_is_and_two_are(cli, monkeypatch):
    for faults, said in ((1, "1 of 3 things is wrong: a\n"), (2, "2 of 3 things are wrong: a, b\n")):
        monkeypatch.setattr("flows.cli.doctor.run_checks", lambda *_, n=faults: [
            Check(name, place >= n, "told", "hint") for place, name in enumerate("abc")])
        assert cli("doctor")[2] == f"error: {said}"


def test_a_home_that_cannot_be_written(tmp_path):
    Store(tmp_path)
    assert told(state(tmp_path))["home"][0]
    assert not told(state(tmp_path / "FORMAT"))["home"][0], "a file is no home"


def test_a_home_whose_path_no_run_can_write_down(tmp_path):
    home = tmp_path / "d\udcff"
    assert told(state(home)).keys() == {"home"}
    well, said, hint = told(state(home))["home"]
    assert not well and "is not UTF-8" in said and "rename that folder" in hint and not home.exists()


def test_a_home_that_others_can_look_into(tmp_path):
    Store(tmp_path)
    tmp_path.chmod(0o750)
    well, said, hint = told(state(tmp_path))["home"]
    assert not well and "others can look into" in said and "0750" in said and f"chmod 700 {tmp_path}" in hint
    assert tmp_path.stat().st_mode & 0o777 == 0o750, "it looks and changes nothing"


def test_servers_are_asked_and_one_that_has_ended_is_seen(tmp_path, monkeypatch):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    (tmp_path / "run").mkdir()
    ended = {"name": "mlflow", "title": "MLflow", "pid": 2**22 + 1, "create_time": 1.0, "address": "http://127.0.0.1:1",
             "health": "http://127.0.0.1:1/", "command": ["mlflow"], "mark": "a"}
    for manager, remedy in (("", "logs/mlflow.log"), ("systemd", "start it by systemd")):
        (tmp_path / "run" / "mlflow.json").write_text(json.dumps({**ended, "manager": manager}))
        well, said, hint = told(servers(tmp_path, ""))["mlflow"]
        assert not well and said == "has ended: http://127.0.0.1:1" and remedy in hint
    with mlflow_server(tmp_path / "server") as (address, _):
        assert told(servers(tmp_path / "none", address))["mlflow"] == (True, f"answers at {address}", "")
    assert os.environ.get("PREFECT_API_URL") is None


def test_a_folder_of_a_home_on_a_disk_that_is_gone_is_named(cli, tmp_path):
    """Its objects may be moved to a larger disk, with a link to them."""
    Store(tmp_path / "home")
    (tmp_path / "home" / "objects").rmdir()
    (tmp_path / "home" / "objects").symlink_to(tmp_path / "not mounted")
    code, out, _ = cli("doctor", "--home", "home")
    assert code == 1 and f"{tmp_path}/home/objects is no folder" in out
    code, _, said = cli("gc", "--home", "home")
    assert code == 2 and f"error: {tmp_path}/home/objects is no folder\nhint: mount the disk that it leads to" in said
