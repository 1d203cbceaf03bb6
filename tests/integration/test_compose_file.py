"""What `xc service` writes: homes that are named in other ways; a GPU, and the loopback behind a proxy."""

import json
import os
import pwd
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows.cli.app import main
from flows.config import Ports
from flows.services.compose import compose
from flows.services.service_manager import Setup
from tests.support.ports import free_port


@pytest.fixture
def setup(tmp_path):
    return Setup(tmp_path, "1000:1000")


def made(setup):
    return json.loads(compose(setup, "xcflow", secrets=False))["services"]


def test_the_worker_of_the_pool_gpu_alone_has_the_gpus(setup):
    services = made(replace(setup, gpu=True))
    assert [name for name, service in services.items() if "deploy" in service] == ["worker-gpu"]
    (device,) = services["worker-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}


@pytest.mark.parametrize("what", ["systemd", "compose"])
def test_a_home_whose_owner_has_no_name_here_is_refused(tmp_path, monkeypatch, capsys, what):
    """As one that a container made, or that is mounted from another machine."""
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    monkeypatch.setattr(Path, "stat", lambda path, **_: SimpleNamespace(st_uid=54321, st_mode=0o40700))
    with pytest.raises(SystemExit, match="2"):
        main(["service", what, str(tmp_path / "files"), "--home", str(tmp_path)])
    assert "there is no user '54321'\nhint: create it, or name another: --user" in capsys.readouterr().err


def test_units_name_a_home_beside_the_current_folder_without_dots(tmp_path, monkeypatch):
    for name in ("here", "home"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("PREFECT_API_URL", raising=False)    # of other tests' server, which would need no unit
    with pytest.raises(SystemExit, match="0"):
        main(["service", "systemd", "units", "--home", "../home", "--user", pwd.getpwuid(os.getuid()).pw_name])
    units = [path.read_text() for path in Path("units").glob("*.service")]
    assert len(units) == 4 and all(f"\nWorkingDirectory={tmp_path}/home\n" in unit for unit in units)
    assert not any("/../" in unit for unit in units)    # systemd starts none that has such a path


class HealthEndpoint(BaseHTTPRequestHandler):
    """Answers 200 at /healthz alone."""

    def do_GET(self):
        self.send_response(200 if self.path == "/healthz" else 404)
        self.end_headers()

    def log_message(self, *_):
        pass


def test_a_part_is_found_well_behind_a_proxy(setup):
    """Compose gives containers the proxies of docker's settings; this machine's loopback is behind none."""
    proxies = {name: f"http://127.0.0.1:{free_port()}" for name in ("http_proxy", "HTTP_PROXY")}
    environment = {name: value for name, value in os.environ.items() if name.lower() != "no_proxy"} | proxies
    with HTTPServer(("127.0.0.1", 0), HealthEndpoint) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        ports = Ports(4200, 5000, server.server_port)
        kind, program, *words = made(replace(setup, ports=ports))["app"]["healthcheck"]["test"]
        assert (kind, program) == ("CMD", "python3")
        for path, code in (("/healthz", 0), ("/nothing", 1)):
            command = [sys.executable, *(word.replace("/healthz", path) for word in words)]
            done = subprocess.run(command, env=environment, capture_output=True, check=False)
            assert done.returncode == code, done.stderr.decode()
        server.shutdown()
