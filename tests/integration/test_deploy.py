"""What `xc deploy` finds and changes on a Prefect server."""

from flows.deploy import apply, plan, prepare_server
from flows.forms import ApplyLabelsForm, EvaluateForm, PrepareForm, RetrainForm
from tests.support.home_services import prefect_client


def test_a_deployment_that_was_paused_in_prefects_page_is_scheduled_again(prefect_server, tmp_path):
    """Its schedule is still active, and what runs by it was deleted."""
    given = {"data": "/data/wordnet", "home": str(tmp_path)}
    forms = {"prepare": PrepareForm(**given), "retrain": RetrainForm(**given), "evaluate": EvaluateForm(**given),
             "apply-labels": ApplyLabelsForm(name="wordnet", home=str(tmp_path))}

    def deploy(*, dry_run: bool = False) -> dict[str, str]:
        wanted = plan(tmp_path.name, forms, [], {}, "cpu")
        changes = apply(wanted, dry_run=dry_run, tell=lambda change: None)
        return {change.deployment.partition("/")[0]: change.change for change in changes}

    with prefect_client() as client:
        prepare_server()
        assert set(deploy().values()) == {"created"} and set(deploy().values()) == {"nothing"}
        retrain = client.read_deployment_by_name(f"retrain/{tmp_path.name}").id
        client.pause_deployment(retrain)
        for dry_run in (True, False):
            assert deploy(dry_run=dry_run) == {**dict.fromkeys(forms, "nothing"), "retrain": "pause"}
        assert not client.read_deployment(retrain).paused and set(deploy().values()) == {"nothing"}
        for name in forms:
            client.delete_deployment(client.read_deployment_by_name(f"{name}/{tmp_path.name}").id)
