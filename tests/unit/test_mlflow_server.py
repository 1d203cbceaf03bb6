"""Who may ask the home's MLflow server; tests/e2e/test_deployments.py asks a real one."""

import base64

import pytest

from serving.http.guard import Problem
from serving.mlflow_server import OwnerOnly
from tasks.tracking.mlflow_client import password, signed_in

SERVER = OwnerOnly(None, frozenset({"127.0.0.1:5000", "localhost:5000"}), "xc:secret")    # type: ignore[arg-type]
RIGHT = "Basic " + base64.b64encode(b"xc:secret").decode()


@pytest.mark.parametrize(("path", "headers", "status"), [
    ("/", {}, None), ("/", {"origin": "http://127.0.0.1:5000"}, None),
    ("/", {"host": "LOCALHOST:5000", "origin": "http://localhost:5000"}, None),
    ("/health", {"authorization": ""}, None),
    *((path, {"authorization": ""}, 401) for path in (
        "/", "/version", "/graphql", "/HEALTH", "/health/", "/static-files/x", "/api/2.0/mlflow/runs/get",
        "/api/2.0/mlflow-artifacts/artifacts/1/x.py", "/ajax-api/2.0/mlflow/upload-artifact")),
    *(("/", {"authorization": given}, 401) for given in (
        "Basic", "Basic x", "Bearer " + RIGHT.partition(" ")[2], RIGHT[:-1], RIGHT + "x", "Basic \xff")),
    *((path, {"origin": origin}, 403) for path in ("/graphql", "/health") for origin in (
        "http://localhost:9999", "http://127.0.0.1:9999", "http://localhost:5000", "http://localhost", "null",
        "https://127.0.0.1:5000", "http://evil.example")),
    *(("/health", {"host": host}, 421) for host in ("", "evil.example", "evil.example:5000", "localhost:9999"))])
def test_who_may_ask(path, headers, status):
    asked = {"host": "127.0.0.1:5000", "authorization": RIGHT, **headers}
    if status is None:
        SERVER.admit(path, asked)
        return
    with pytest.raises(Problem) as refused:
        SERVER.admit(path, asked)
    assert refused.value.status == status and "secret" not in refused.value.detail


def test_the_password_is_made_once_a_home_for_its_owner(tmp_path):
    first = password(tmp_path / "a")
    assert first == password(tmp_path / "a") != password(tmp_path / "b") and len(first) > 20
    assert (tmp_path / "a" / "mlflow" / "password").stat().st_mode & 0o777 == 0o600
    assert ":".join(signed_in(tmp_path / "a").values()) == first
    assert "secret" not in repr(SERVER)
