"""Requests made of the OpenAPI document of a gateway whose clients need keys: with a good key all is as without keys;
with none, a wrong one or a revoked one every operation is refused before anything of the request is looked at. And one
operation after another, as the document's answers lead to them."""

from collections.abc import Iterator
from functools import partial
from http import HTTPStatus

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error

from services.gateway.access.api_keys import OPEN_PATHS, PAGE
from services.gateway.api.app import make_routes
from shared.openai.fields import FLEX
from tests.services.gateway.api.test_schema import CHECKS, use_what_is_there
from tests.services.gateway.gateway_rig import MODEL, GatewayRig, wait_until

KEY, OTHER_KEY = "0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"
SCHEMA = schemathesis.openapi.from_dict(make_routes(keys_required=True).openapi())
OPERATIONS = {f"{found.ok().method.upper()} {found.ok().path}": found.ok() for found in SCHEMA.get_all_operations()}
CLOSED = [name for name, operation in OPERATIONS.items() if operation.path not in (*OPEN_PATHS, PAGE)]
WRONG = ("", "Bearer", "Bearer ", f"Bearer {OTHER_KEY}", f"Basic {KEY}", f"Bearer {KEY}x", "Bearer \xff", "x" * 5000)
FEW, MANY = 4, 20  # what a request may be is drawn more often where no keys are needed
QUIET = partial(
    settings, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
STEPS, MANY_STEPS = 4, 12
OWN = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("gateway")) as made:
        made.start_executor("executor-0", "--sim-time-scale", "0.01")
        made.start_offline_queue()
        made.start_gateway("--host", "0.0.0.0", "--api-key", KEY)
        made.wait_ready()
        yield made


def assert_well(rig: GatewayRig) -> None:
    assert not [event for event in rig.log_events("gateway") if "exception" in event]
    assert "Traceback" not in rig.logs()


@pytest.mark.parametrize("examples", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CLOSED)
def test_who_has_no_key_is_refused_whatever_is_asked(rig: GatewayRig, name: str, examples: int) -> None:
    @seed(examples)
    @QUIET(max_examples=examples)
    @given(case=OPERATIONS[name].as_strategy(generation_mode=GenerationMode.POSITIVE))
    def check(case: Case) -> None:
        for authorization in WRONG:
            headers = {"Authorization": authorization.encode("latin-1")} if authorization else {}
            case.headers = {}
            answer = case.call(base_url=rig.url, headers=headers, timeout=30)
            assert answer.status_code == HTTPStatus.UNAUTHORIZED, (authorization, answer.text)
            assert answer.json()["error"]["message"]

    check()
    assert_well(rig)


@pytest.mark.parametrize("examples", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", OPERATIONS)
def test_with_a_key_answers_are_as_the_document_says(rig: GatewayRig, name: str, examples: int) -> None:
    @seed(examples)
    @QUIET(max_examples=examples)
    @given(case=OPERATIONS[name].as_strategy(generation_mode=GenerationMode.POSITIVE))
    def check(case: Case) -> None:
        use_what_is_there(case, {"model_id": MODEL, "executor_id": "executor-0", "input_file_id": "none"})
        if isinstance(case.body, dict) and case.body.get("service_tier") == FLEX:
            case.body["service_tier"] = "default"  # no latency model is here, without which offline work waits
        case.headers = {"Authorization": f"Bearer {KEY}"}
        case.call_and_validate(base_url=rig.url, checks=CHECKS, timeout=30)

    check()
    assert_well(rig)


@pytest.mark.parametrize(("runs", "steps"), [(FEW, STEPS), pytest.param(MANY, MANY_STEPS, marks=pytest.mark.slow)])
def test_operations_follow_each_other(rig: GatewayRig, runs: int, steps: int) -> None:
    """A file's id leads to the file, to its content and to a batch, a batch's to the batch and its end."""
    seen: set[str] = set()

    class Workflow(SCHEMA.as_state_machine()):  # type: ignore[misc]
        def before_call(self, case: Case) -> None:
            case.headers = {**OWN}
            if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
                case.body["model"] = MODEL
            seen.add(f"{case.method} {case.path}")

        def teardown(self) -> None:
            """What is drawn next depends on what is there."""
            for kind in ("batches", "files"):
                for each in rig.http.get(f"/v1/{kind}", headers=OWN).json()["data"]:
                    rig.http.delete(f"/v1/{kind}/{each['id']}", headers=OWN)
            super().teardown()

        def get_call_kwargs(self, case: Case) -> dict[str, object]:
            return {"base_url": rig.url, "timeout": 30}

        def validate_response(self, response: schemathesis.Response, case: Case, **_: object) -> None:
            case.validate_response(response, checks=[not_a_server_error])

    Workflow.run(settings=QUIET(max_examples=runs, stateful_step_count=steps))
    assert len(seen) > 1
    assert_well(rig)


def test_a_file_becomes_a_batch_that_is_cancelled_and_its_key_revoked(rig: GatewayRig) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    form = {"purpose": (None, "batch"), "file": ("a.jsonl", b'{"custom_id": "a"}\n')}
    file_id = rig.http.post("/v1/files", files=form, headers=headers).json()["id"]
    body = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
    batch_id = rig.http.post("/v1/batches", json=body, headers=headers).json()["id"]
    wait_until(lambda: rig.http.get(f"/v1/batches/{batch_id}", headers=headers).json()["status"] == "failed", rig.logs)
    again = rig.http.post(f"/v1/batches/{batch_id}/cancel", headers=headers)
    assert (again.status_code, again.json()["error"]["message"]) != (200, "")
    for path in (f"/v1/files/{file_id}", f"/v1/files/{file_id}/content", f"/v1/batches/{batch_id}"):
        assert rig.http.get(path).status_code == HTTPStatus.UNAUTHORIZED
        assert rig.http.get(path, headers=headers).status_code == HTTPStatus.OK
    assert_well(rig)
