"""`xc service`: units that systemd takes, a compose file, and parts that a service manager runs."""

import errno
import json
import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from data_contracts.errors import ProjectError, UsageError
from flows.cli.commands import service as command
from flows.cli.commands import stack as commands
from flows.config import PORTS, Ports
from flows.services import systemd_units
from flows.services.compose import compose
from flows.services.definitions import services
from flows.services.processes import Record
from flows.services.service_manager import SERVER_VARIABLES, Part, Setup
from flows.services.stack import Stack
from tests.conftest import ROOT
from tests.support.forked import run_xc
from tests.support.home_services import until
from tests.support.ports import free_port

USER = pwd.getpwuid(os.getuid()).pw_name
OTHER = {"PREFECT_API_URL": "http://prefect.example:4200/api", "PREFECT_API_AUTH_STRING": "xc:a-password"}
MLFLOW = "http://me:a-password@mlflow.example:5000"


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "a home, 100%"
    folder.mkdir(mode=0o700)
    return folder


def xc(*words, **environment):
    """Run `xc service` for this user, without the servers of other tests; -> (exit code, stderr)."""
    own = {name: value for name, value in os.environ.items() if name not in OTHER}
    code, out, said = run_xc("service", *map(str, words), env={**own, **environment}, cwd=ROOT)
    assert not out and "Traceback" not in said
    return code, said


def lines(text, key):
    """Return the values of a key of a unit."""
    return re.findall(rf"^{key}=(.*)$", text, re.MULTILINE)


def test_units_are_those_of_the_parts_of_a_home(home, tmp_path):
    folder = tmp_path / "units"
    code, said = xc("systemd", folder, "--home", home, "--user", USER, "--workers", "2", "--gpu", "--name", "lab")
    assert code == 0 and "systemctl enable --now lab.target" in said
    files = {path.name: path.read_text() for path in folder.iterdir()}
    names = ["lab-prefect", "lab-mlflow", "lab-worker-cpu", "lab-worker-gpu", "lab-app"]
    assert files.keys() == {"lab.target", *(f"{name}.service" for name in names)}
    assert lines(files["lab.target"], "Wants") == [" ".join(f"{name}.service" for name in names)]
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o644}
    for name in names:
        unit = files[f"{name}.service"]
        told = str(home).replace("%", "%%")
        assert lines(unit, "User") == [USER] and lines(unit, "WorkingDirectory") == [told]
        assert lines(unit, "ReadWritePaths") == [f'"{told}"'] and lines(unit, "ProtectSystem") == ["strict"]
        assert lines(unit, "NoNewPrivileges") == ["yes"] and lines(unit, "StandardOutput") == ["journal"]
        assert lines(unit, "Restart") == ["always"] and lines(unit, "StartLimitIntervalSec") == ["0"]
        assert lines(unit, "PartOf") == ["lab.target"]
        [command] = lines(unit, "ExecStart")
        assert f" service run {name.removeprefix('lab-')} --home " in command and "--workers 2" in command
        assert lines(unit, "ExecStartPost") == [command.replace(" service run ", " service wait ")]
    assert lines(files["lab-app.service"], "After") == ["network.target lab-mlflow.service"]
    assert lines(files["lab-worker-gpu.service"], "After") == ["network.target lab-prefect.service"]
    assert lines(files["lab-app.service"], "TimeoutStopSec") == ["60"]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_takes_the_units(home, tmp_path):
    folder = tmp_path / "units"
    assert xc("systemd", folder, "--home", home, "--user", USER, "--gpu")[0] == 0
    verified = subprocess.run(["systemd-analyze", "verify", *map(str, folder.iterdir())], text=True, check=False,
                              capture_output=True)
    assert (verified.returncode, [line for line in verified.stderr.splitlines() if str(folder) in line]) == (0, [])
    broken = folder / "xc-app.service"
    broken.write_text(broken.read_text().replace("ProtectSystem=strict", "ProtectSystem=strictly"))
    command = ["systemd-analyze", "verify", str(broken)]
    said = subprocess.run(command, text=True, check=False, capture_output=True).stderr
    assert "Failed to parse protect system value" in said    # it would say so


def test_the_pause_before_a_restart_grows_where_systemd_knows_how(home, monkeypatch):
    for version, told in ((252, ["RestartSec=10"]), (254, ["RestartSec=1", "RestartSteps=6", "RestartMaxDelaySec=60"]),
                          (0, ["RestartSec=1", "RestartSteps=6", "RestartMaxDelaySec=60"])):
        monkeypatch.setattr(systemd_units, "systemd_version", lambda version=version: version)
        unit = systemd_units.units(Setup(home, USER))["xc-app.service"]
        assert [line for line in unit.splitlines() if line.startswith(("RestartS", "RestartM"))] == told


def test_words_are_quoted_as_systemd_reads_them(home):
    unit = systemd_units.units(Setup(home, USER, model='a "b" $c\\'))["xc-app.service"]
    told = str(home).replace("%", "%%")
    assert f'--home "{told}" ' in unit and r'--model "a \"b\" $$c\\"' in unit
    with pytest.raises(UsageError, match="cannot be written into a unit"):
        systemd_units.units(Setup(home, USER, model="a\nExecStart=/bin/sh"))


def test_no_file_that_others_can_read_has_a_password(home, tmp_path):
    folder = tmp_path / "files"
    for what in ("systemd", "compose"):
        assert xc(what, folder, "--home", home, "--user", USER, "--mlflow", MLFLOW, **OTHER)[0] == 0
    assert all("a-password" not in path.read_text() for path in folder.iterdir())
    assert not (folder / "xc-prefect.service").exists()    # one that was there is used
    assert "prefect" not in json.loads((folder / "compose.yaml").read_text())["services"]
    path = home / "service.env"
    assert path.read_text() == "".join(f"{name}='{value}'\n" for name, value in (OTHER | {"XC_MLFLOW": MLFLOW}).items())
    assert path.stat().st_mode & 0o777 == 0o600
    assert lines((folder / "xc-app.service").read_text(), "EnvironmentFile") == [
        f"-{str(home).replace('%', '%%')}/service.env"]


def test_no_command_of_a_part_has_a_password(home):
    parts = services(home, PORTS, mlflow=MLFLOW)
    assert not [part.name for part in parts if "a-password" in " ".join(part.command)]
    assert next(part for part in parts if part.name == "app").environment["XC_MLFLOW"] == MLFLOW


def test_servers_that_are_named_no_more_are_not_read_for_ever(home, tmp_path):
    """Else the units have a part prefect, and its `service run` would find that there is none."""
    words = ("systemd", tmp_path / "units", "--home", home, "--user", USER)
    assert xc(*words, **OTHER)[0] == 0
    before = sorted((tmp_path / "units").iterdir())
    code, said = xc(*words)
    assert code == 2 and "service.env names servers" in said and "or remove it" in said
    assert sorted((tmp_path / "units").iterdir()) == before
    (home / "service.env").unlink()
    assert xc(*words, "--force")[0] == 0 and (tmp_path / "units" / "xc-prefect.service").exists()


def test_a_home_that_is_closed_to_this_user(home, monkeypatch):
    def closed(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    for name in SERVER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(command, "put_file", closed)
    monkeypatch.setattr(Path, "exists", closed)
    assert not command._secrets(Setup(home, USER))
    with pytest.raises(ProjectError, match=r"service.env: Permission denied"):
        command._write(home, {}, command._secrets(Setup(home, USER, mlflow=MLFLOW)), force=False)


def test_commands_to_paste_take_any_folder(home, tmp_path):
    folder = tmp_path / "my units"
    _, said = xc("systemd", folder, "--home", home, "--user", USER)
    line = next(line for line in said.splitlines() if line.startswith("next"))
    words = shlex.split(line)
    assert words[3:6] == [f"{folder}/xc.target", f"{folder}/xc-*.service", "/etc/systemd/system/"]
    _, said = xc("compose", folder, "--home", home, "--user", USER)
    assert str(folder / "compose.yaml") in shlex.split(said.splitlines()[-1])
    _, said = xc("systemd", folder, "--home", tmp_path / "no home")
    assert shlex.split(said.splitlines()[-1])[-1] == str(tmp_path / "no home")


def test_files_that_differ_are_replaced_only_when_told(home, tmp_path):
    folder = tmp_path / "units"
    words = ("systemd", folder, "--home", home, "--user", USER)
    assert xc(*words)[0] == 0
    (folder / "xc-app.service").write_text("edited by hand")
    (folder / "xc.target").unlink()
    code, said = xc(*words)
    assert code == 2 and "xc-app.service is there and differs" in said and "--force" in said
    assert xc(*words, **OTHER)[0] == 2 and not (home / "service.env").exists()    # nothing is written half
    assert not (folder / "xc.target").exists() and (folder / "xc-app.service").read_text() == "edited by hand"
    code, said = xc(*words, "--force")
    assert code == 0 and said.count("as it was") == 3 and said.count("written") == 2
    assert "[Service]" in (folder / "xc-app.service").read_text()
    assert not list(folder.glob(".*"))


def test_a_name_is_the_beginning_of_a_unit(home, tmp_path):
    code, said = xc("systemd", tmp_path, "--home", home, "--user", USER, "--name", "a/b")
    assert code == 2 and "--name must be of letters, digits, - and _, got 'a/b'" in said


@pytest.mark.parametrize(("words", "told"), [
    (("--user", "no-such-user"), "there is no user 'no-such-user'"), (("--workers", "0"), "--workers must be from 1"),
    (("--home", "/nowhere/home"), "there is no /nowhere/home"),
    (("--port", "5000"), "--mlflow-port and --port are both 5000")])
def test_what_cannot_be_run_is_refused(home, tmp_path, words, told):
    for what in ("systemd", "compose"):
        usual = {"--home": str(home), "--user": USER} | dict([words])
        code, said = xc(what, tmp_path / "files", *(word for pair in usual.items() for word in pair))
        assert code == 2 and told in said
    assert f"{__file__} cannot be made: File exists" in xc("compose", __file__, "--home", home, "--user", USER)[1]
    assert not (tmp_path / "files").exists()


def test_a_compose_file_has_a_container_for_each_part(home):
    setup = Setup(home, "1000:1000", ports=Ports(4201, 5001, 8001), workers=2, model="a$b")
    made = json.loads(compose(setup, "registry.example/xcflow:1", secrets=False))
    assert made.keys() == {"services"} and made["services"].keys() == {"prefect", "mlflow", "worker-cpu", "app"}
    for name, service in made["services"].items():
        assert service["image"] == "registry.example/xcflow:1" and service["user"] == "1000:1000"
        assert service["command"][:3] == ["service", "run", name]
        assert ("--prepare" in service["command"]) == (name == "prefect")    # its pools; nothing else is set up
        assert service["volumes"] == [{"type": "bind", "source": str(home), "target": str(home)}]
        assert service["network_mode"] == "host" and "ports" not in service and "env_file" not in service
        assert service["read_only"] and service["cap_drop"] == ["ALL"] and service["restart"] == "always"
    app = made["services"]["app"]
    assert app["depends_on"] == {"mlflow": {"condition": "service_healthy"}} and app["stop_grace_period"] == "60s"
    assert "http://127.0.0.1:8001/healthz" in app["healthcheck"]["test"][-1]
    assert app["command"][app["command"].index("--model") + 1] == "a$$b"
    secret = json.loads(compose(setup, "x", secrets=True))["services"]["app"]
    assert secret["env_file"] == [f"{home}/service.env"]


@pytest.mark.skipif(not shutil.which("docker-compose"), reason="docker-compose is not installed")
def test_compose_takes_the_file(home, tmp_path):
    assert xc("compose", tmp_path, "--home", home, "--user", USER, "--gpu", **OTHER)[0] == 0
    command = ["docker-compose", "--file", str(tmp_path / "compose.yaml"), "config", "--quiet"]
    subprocess.run(command, check=True)
    text = (tmp_path / "compose.yaml").read_text()
    (tmp_path / "compose.yaml").write_text(text.replace('"cap_drop"', '"cap_drops"'))
    assert subprocess.run(command, check=False, capture_output=True).returncode    # it would say so


def test_an_image_has_what_the_package_is_made_of_and_no_more():
    """A home or a token in the checkout must not get into an image; without a builder here, only the files are read."""
    first, *rest = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["include"]
    assert first == "*" and set(rest) == {"**/__pycache__", *(f"!{name.removesuffix('*')}" for name in packages), *(
        f"!{name}" for name in ("LICENSE", "README.md", "constraints.txt", "constraints-cuda.txt",
                                  "pyproject.toml"))}
    assert all((ROOT / name.removeprefix("!")).exists() for name in rest if name.startswith("!"))
    text = (ROOT / "Dockerfile").read_text()
    assert "--require-hashes --requirement constraints.txt" in text and "\nUSER 1000:1000\n" in text
    assert text.rstrip().endswith('ENTRYPOINT ["/opt/venv/bin/xc"]')


def test_parts_are_started_after_what_they_need(home):
    setup = Setup(home, USER)
    assert setup.parts()[0] == Part("prefect", "Prefect server")
    assert [part.needs for part in replace(setup, prefect="http://x", mlflow="http://y").parts()] == [[], []]


def test_a_part_under_a_service_manager_is_found_and_left_to_it(tmp_path, monkeypatch):
    """MLflow's server, as it makes its database by itself: it answers, is in `xc status`, and `xc down` leaves it."""
    home, port = tmp_path / "home", free_port()
    words = ["--home", str(home), "--mlflow-port", str(port)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XC_MANAGER": "systemd"}
    process = subprocess.Popen([sys.executable, "-m", "flows.cli", "service", "run", "mlflow", *words], env=environment,
                               cwd=tmp_path, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        until(lambda: Stack(home).running("mlflow"))
        code, said = xc("wait", "mlflow", *words)
        assert code == 0, said
        record = Stack(home).running("mlflow")
        assert (record.pid, record.manager, record.well) == (process.pid, "systemd", True)
        assert (home / "run" / "mlflow.json").stat().st_mode & 0o777 == 0o600
        code, out, _ = run_xc("status", "--home", str(home), cwd=ROOT)
        assert code == 0 and out.rstrip().endswith("run by systemd")
        code, _, said = run_xc("up", "--home", str(home), cwd=ROOT)
        assert code == 2 and "is run by systemd" in said
        code, _, said = run_xc("down", "--home", str(home), cwd=ROOT)
        assert code == 0 and "systemd" in said and "left to it" in said and process.poll() is None
        code, said = xc("run", "mlflow", *words)
        assert code == 5 and str(process.pid) in said    # one at a time
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    assert not Stack(home).managers()
    code, _, said = run_xc("status", "--home", str(home), cwd=ROOT)
    assert code == 5 and said.rstrip().endswith("hint: start it by systemd")    # or wait until systemd does so
    monkeypatch.setattr(commands, "say", lambda line: None)
    commands.down(home=home)
    assert not Stack(home).records()


def test_an_unknown_part_is_named(tmp_path):
    (tmp_path / "home").mkdir()
    code, said = xc("wait", "ap", "--home", tmp_path / "home")
    assert code == 2 and "there is no part 'ap'" in said and "prefect, mlflow, worker-cpu, worker-gpu, app" in said


def test_the_supervisor_leaves_a_part_to_its_service_manager(tmp_path):
    stack = Stack(tmp_path / "home")
    stack.home.mkdir()
    stack.folder.mkdir()
    (stack.folder / "lock").touch()
    ended = Record("app", "app", 2**22 + 1, time.time(), "", "", ["true"], "mark", {}, manager="systemd")
    stack._write(ended)
    assert not ended.alive and not stack.restart("app")
