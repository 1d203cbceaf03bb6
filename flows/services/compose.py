"""A compose file for the parts of a home: `xc service compose`."""

import json
from typing import Any

from flows.services.service_manager import Part, Setup

# The address that answers 200 while a part is well.
HEALTH = {"prefect": "{prefect}/api/health", "mlflow": "{mlflow}/health", "app": "{app}/healthz"}


def compose(setup: Setup, image: str, *, secrets: bool) -> str:
    """Return a compose file whose containers share the network and process ids of the host; it holds no secret.

    So the parts listen on its loopback alone, as with `xc up`, and find each other by the records in HOME/run. secrets:
    HOME/service.env exists. JSON is YAML, and needs no rules for quotes.
    """
    services = {part.name: _service(setup, part, image, secrets=secrets) for part in setup.parts()}
    return json.dumps({"services": services}, indent=2, ensure_ascii=False) + "\n"


def _service(setup: Setup, part: Part, image: str, *, secrets: bool) -> dict[str, Any]:
    home = _escaped(str(setup.home))
    prepare = ["--prepare"] if part.name == "prefect" else []    # its pools; the others need none
    service: dict[str, Any] = {
        "image": image,
        "command": [_escaped(word) for word in [*setup.words("run", part.name), *prepare]],
        "user": setup.user,
        "network_mode": "host",
        "pid": "host",
        "init": True,
        "environment": {"XC_MANAGER": "compose", "HOME": "/tmp"},
        "volumes": [{"type": "bind", "source": home, "target": home}],
        "read_only": True,
        "tmpfs": ["/tmp"],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "restart": "always",
        "stop_grace_period": f"{part.stop:.0f}s",
        "logging": {"driver": "json-file", "options": {"max-size": "10m", "max-file": "3"}},
    }
    if secrets:
        service["env_file"] = [f"{home}/service.env"]
    if part.name == "worker-gpu":    # a container sees no GPU that is not reserved for it
        service["deploy"] = {"resources": {"reservations": {"devices": [
            {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]}}}
    if part.needs:
        service["depends_on"] = {need: {"condition": "service_healthy"} for need in part.needs}
    if (health := HEALTH.get(part.name)) is not None:
        address = health.format(**{name: f"http://127.0.0.1:{port}" for name, port in vars(setup.ports).items()})
        service["healthcheck"] = {
            "test": ["CMD", "python3", "-c", "import urllib.request as r; "    # past the proxies that docker hands on
                     f"r.build_opener(r.ProxyHandler({{}})).open('{address}', timeout=3)"],
            "interval": "10s", "timeout": "5s", "retries": 3, "start_period": "180s"}
    return service


def _escaped(text: str) -> str:
    """Return text in which compose replaces no variable."""
    return text.replace("$", "$$")
