"""Commands and deployments that share results at an address: refused where it is wrong, else nothing is made twice."""

import json

import pytest
from pydantic import ValidationError

from flows.forms import PrepareForm
from tests.support.object_store import SECRET
from tests.support.run_command import command, objects


def test_a_command_refuses_such_an_address_before_its_servers_start(planted, s3, cli, tmp_path):
    code, _, err = cli("run", "--data", str(planted), "--store", f"s3://me:hunter2@{s3.name}/x")
    assert code == 2 and "with credentials in it" in err and "hunter2" not in err and not (tmp_path / ".xc").exists()
    (tmp_path / "xc.toml").write_text('store = "s3://no-such-bucket-of-ours/x"\n')
    code, _, err = cli("run", "--data", str(planted))
    assert code == 5 and "s3://no-such-bucket-of-ours/x is not there" in err and "Prefect" not in err
    (tmp_path / "xc.toml").write_text('store = "results"\n')
    code, _, err = cli("run", "--data", str(planted))
    assert code == 2 and "results is not the address of a folder" in err


def test_a_deployment_keeps_addresses_and_no_credentials():
    """Prefect's server checks the pattern before it records a run, which reads and shares as the command does."""
    form = {"data": "s3://bucket/tickets", "store": "s3://bucket/results", "method": "ngame", "preset": "cpu",
            "home": "/home", "dask": "", "workers": 0}
    config = PrepareForm(**form).to_run_config("prepare")
    assert (config.data, config.store, config.subject) == ("s3://bucket/tickets", "s3://bucket/results", "tickets")
    assert "--data s3://bucket/tickets" in config.command and "--store s3://bucket/results" in config.command
    for data in ("tickets", "s3:/bucket", "", "s3://me:hunter2@bucket/x", "https://host/x?signature=hunter2"):
        with pytest.raises(ValidationError, match="should match pattern"):
            PrepareForm(**{**form, "data": data})
        with pytest.raises(ValidationError, match="should match pattern"):
            PrepareForm(**{**form, "store": data or "/folder"})


@pytest.mark.timeout(400)
def test_a_run_in_an_empty_home_reuses_the_work_of_another(planted, whole, s3, xc, tmp_path):
    """All steps, by a second machine that shares but the bucket, with the data in it; its model answers alike."""
    address, data = f"{s3.address}/team", s3.put(planted, "planted")
    first, second = tmp_path / "first", tmp_path / "second"
    told = []
    for home, where in ((first, planted), (second, data)):
        code, out, err = xc(*command(where, home), "--store", address)
        assert code == 0 and json.loads(out)["metrics"] == whole[1]["metrics"], err
        told.append(err)
    assert "all reused" in told[1] and "fetches retriever" in told[1] and "has not got" not in told[1]
    assert "contracts  in the home that checked the tables" in told[1]
    assert objects(second) == objects(first) == objects(whole[0])
    assert SECRET.encode() not in b"".join(path.read_bytes() for path in second.rglob("*") if path.is_file())
    answers = [xc("predict", "--home", str(home), "bana0")[1] for home in (first, second)]
    assert answers[0] == answers[1] != ""
