"""What the containers of `xc service compose` can use: a GPU, and the loopback of the host behind a proxy."""

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from flows.config import Ports
from flows.services.compose import compose
from flows.services.service_manager import Setup
from tasks.core.network import free_port


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
