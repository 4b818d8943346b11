"""The images are built, and the stack of docker-compose.yml runs in them: chat, a stream, a batch, and an end in time.

It needs root, buildah, mmdebstrap and ip, and the mirrors of Debian and PyPI; docs/guides/production.md says how.
"""

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import openai
import pytest

from services.executor.prepare_model import DEFAULT_MODEL
from tests.deploy.built_images import EXECUTOR, BuiltImages
from tests.deploy.composed_stack import ComposedStack
from tests.deploy.containers import missing_tools
from tests.faults.stack.hosts import may_make_hosts
from tests.services.gateway.gateway_rig import wait_until

NOBODY = 10001
KEY = "the-key-of-whoever-calls-this-stack"
ENVIRON = {"SLACKWATER_API_KEY": KEY, "SLACKWATER_THREADS": "1"}
LINES = 4

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(bool(missing_tools()), reason=f"not installed: {', '.join(missing_tools())}"),
    pytest.mark.skipif(os.geteuid() != 0 or not may_make_hosts(), reason="needs root, and network namespaces"),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BuiltImages]:
    images = BuiltImages(tmp_path_factory.mktemp("images"), ENVIRON)
    try:
        images.build()
        yield images
    finally:
        images.remove()


@pytest.fixture(scope="module")
def stack(built: BuiltImages, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComposedStack]:
    with ComposedStack(tmp_path_factory.mktemp("stack"), built) as running:
        yield running


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """A folder of the user who calls the command line."""
    os.chown(tmp_path, NOBODY, NOBODY)
    return tmp_path


def test_each_image_is_for_nobody_and_small(built: BuiltImages) -> None:
    own = {service.image for service in built.services.values() if service.build}
    for image in own:
        assert built.images[image].user == f"{NOBODY}:{NOBODY}"
        assert built.images[image].environment["SLACKWATER_CACHE"] == "/var/lib/slackwater"
    sizes = {image: built.num_bytes(image) / 1e6 for image in sorted(own)}
    print("MB over the base:", {image: round(size) for image, size in sizes.items()})
    assert {image for image, size in sizes.items() if size > 400} <= {EXECUTOR}


def test_services_run_as_nobody_once_their_health_checks_say_so(stack: ComposedStack) -> None:
    assert stack.running == ["nats", "predictor", "offline-queue", "executor", "profiler", "gateway"]
    for name in stack.running:
        process = stack.main_process(name)
        assert stack.services[name].build is None or set(process.uids()) | set(process.gids()) == {NOBODY}, name
        wait_until(partial(stack.is_healthy, name), partial(stack.log, name))  # on a busy machine one comes too late


def test_chat_by_the_command_line(stack: ComposedStack, given: Path) -> None:
    with httpx.Client(base_url=stack.url("gateway", 8000)) as client:
        wait_until(lambda: client.get("/ready").status_code == 200, lambda: stack.log("executor"))
    asked = ("chat", "--url", "http://gateway:8000", "--max-tokens", "16", "What is the capital of France?")
    answer = stack.run("loadgen", *asked, folder=given)
    assert answer.returncode == 0 and "Paris" in answer.stdout, answer.stderr


def test_a_stream(stack: ComposedStack) -> None:
    client = openai.OpenAI(base_url=f"{stack.url('gateway', 8000)}/v1", api_key=KEY, max_retries=0)
    message = {"role": "user", "content": "Count to ten."}
    chunks = list(client.chat.completions.create(model=DEFAULT_MODEL, messages=[message], max_tokens=12, stream=True))
    assert sum(bool(chunk.choices and chunk.choices[0].delta.content) for chunk in chunks) > 4
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="another").models.list()


def test_a_batch(stack: ComposedStack, given: Path) -> None:
    body = {"model": DEFAULT_MODEL, "prompt": "The tide", "max_tokens": 8}
    lines = [
        {"custom_id": f"{each}", "method": "POST", "url": "/v1/completions", "body": body} for each in range(LINES)
    ]
    (given / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    submit = ("batch", "submit", "--url", "http://gateway:8000", "/given/prompts.jsonl", "--wait")
    done = stack.run("loadgen", *submit, "--output", "/given/answers.jsonl", folder=given)
    assert done.returncode == 0, done.stdout + done.stderr
    answers = [json.loads(line) for line in (given / "answers.jsonl").read_text().splitlines()]
    assert {each["custom_id"] for each in answers} == {each["custom_id"] for each in lines}
    assert all(each["response"]["status_code"] == 200 for each in answers)


def test_all_of_it_ends_in_time(stack: ComposedStack) -> None:
    ended = {name: stack.stop(name) for name in reversed(stack.running)}
    assert {name: status for name, (status, _) in ended.items() if status} == {}, ended
    print("seconds to end:", {name: round(took_s, 1) for name, (_, took_s) in ended.items()})
    logs = {name: stack.log(name) for name in ended}
    assert [name for name, log in logs.items() if "Traceback" in log or '"level": "error"' in log] == [], logs
