"""The dashboard in a real browser, on a stack with the sim engine."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="playwright is not installed: pip install -e '.[dev]'")

from playwright.sync_api import Browser, Locator, Page, Route, expect

from deploy.screenshots.browser import MISSING, browser, chromium
from tests.services.gateway.dashboard.test_dashboard import key_command
from tests.services.gateway.gateway_rig import MODEL, GatewayRig, model_folder, wait_until

# In CI it is to be there.
pytestmark = pytest.mark.skipif(chromium() is None and "CI" not in os.environ, reason=MISSING)

KEY = "a-key-of-the-environment-0123456789abcdef"
WAIT_MS = 20_000
NOTE_VIOLATIONS = """
    window.violations = [];
    addEventListener("securitypolicyviolation", (event) => violations.push(event.violatedDirective));
"""
TILE_IS_ABOVE = """
    ([label, least]) => [...document.querySelectorAll(".tile")].some((tile) => tile.textContent.startsWith(label)
        && Number(tile.querySelector(".value").textContent.replaceAll(",", "")) > least)
"""
DONE_IS_ABOVE = """
    ([id, least]) => [...document.querySelectorAll("#batches tbody tr")].some((row) => row.textContent.includes(id)
        && row.querySelector("progress").value > least)
"""
CHARTS_FIT = "() => document.querySelector('.uplot').offsetWidth <= document.querySelector('.plot').offsetWidth"
TILES = ("Time to first token", "Time between tokens", "Step time", "Offline throughput")

expect.set_options(timeout=WAIT_MS)


@dataclass
class Watched:
    """A page, what it complained about, and what it asked for."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requested: list[str] = field(default_factory=list)

    def expect_state(self, state: str) -> None:
        expect(self.page.get_by_role("status")).to_have_text(state)

    def batch(self, batch_id: str) -> Locator:
        return self.page.get_by_role("row").filter(has_text=batch_id)

    def colours(self) -> list[str]:
        """Of the page and of its ink."""
        script = "() => [getComputedStyle(document.body)].flatMap((style) => [style.backgroundColor, style.color])"
        found: list[str] = self.page.evaluate(script)
        return found


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("dashboard")) as made:
        made.start_executor("executor-0", "--sim-time-scale", "0.3")
        made.start_offline_queue()
        made.start_predictor()
        made.start_profiler("--slo", "ttft_p99<=5s", "--slo-min-requests", "1000000")
        made.start_gateway("--require-keys", "never")
        made.wait_ready()
        yield made


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with browser() as launched:
        yield launched


@pytest.fixture(scope="module")
def seen(rig: GatewayRig, chrome: Browser) -> Iterator[Watched]:
    """One page for all tests that need none of their own."""
    with watched(chrome, rig.url, color_scheme="light") as made:
        yield made


@contextmanager
def watched(chrome: Browser, url: str, **options: str) -> Iterator[Watched]:
    """The dashboard in a profile of its own."""
    context = chrome.new_context(viewport={"width": 1280, "height": 900}, **options)  # type: ignore[arg-type]
    context.set_default_timeout(WAIT_MS)
    context.add_init_script(NOTE_VIOLATIONS)
    made = Watched(context.new_page())
    made.page.on("console", lambda message: made.complaints.append(f"{message.type}: {message.text}"))
    made.page.on("pageerror", lambda error: made.complaints.append(str(error)))
    made.page.on("request", lambda request: made.requested.append(request.url))
    made.page.goto(url)
    try:
        yield made
    finally:
        context.close()


def submit(rig: GatewayRig, num_lines: int, max_tokens: int, model: str = MODEL) -> str:
    body = {"model": model, "prompt": "Once upon a time", "max_tokens": max_tokens, "ignore_eos": True}
    return rig.submit_batch([body] * num_lines)


def right_edge(shown: Locator) -> float:
    """In pixels from the window's left."""
    box = shown.bounding_box()
    assert box is not None, shown
    return box["x"] + box["width"]


def test_an_idle_stack_says_what_to_do(rig: GatewayRig, seen: Watched) -> None:
    page = seen.page
    seen.expect_state("Live")
    expect(page.get_by_text("No batch yet. Submit one: slackwater batch submit FILE")).to_be_visible()
    expect(page.get_by_role("table", name="Executors")).to_contain_text("executor-0")
    expect(page.get_by_role("banner")).to_contain_text(MODEL)
    expect(page.get_by_role("banner")).to_contain_text("preset hygen")
    expect(page.get_by_text("no request in the last minute").first).to_be_visible()
    expect(page.locator("#budgets")).to_contain_text("ttft_p99<=5s")
    expect(page.locator("#budgets")).to_contain_text("recording the workload")  # so offline work can run
    expect(page.locator("#unwell")).to_be_hidden()
    assert len(seen.requested) > 10 and all(url.startswith(rig.url) for url in seen.requested)
    assert page.evaluate("violations") == [] and seen.complaints == []


def test_figures_move_with_the_load(rig: GatewayRig, seen: Watched) -> None:
    batch_id = submit(rig, 400, 20)
    with rig.completing(max_tokens=30, ignore_eos=True):
        for tile in TILES:
            seen.page.wait_for_function(TILE_IS_ABOVE, arg=[tile, 0])
        seen.page.wait_for_function(DONE_IS_ABOVE, arg=[batch_id, 0])
        expect(seen.page.get_by_text("✓ kept").first).to_be_visible()
        executors = seen.page.get_by_role("table", name="Executors")
        expect(executors).to_contain_text(re.compile(r"Entering[^0-9]*planned, computed"))
    expect(seen.batch(batch_id)).to_contain_text("completed")
    expect(seen.batch(batch_id)).to_contain_text("400 of 400")
    expect(seen.batch(batch_id).get_by_role("button")).to_be_hidden()
    assert seen.page.evaluate("violations") == [] and seen.complaints == []


def test_a_fresh_page_has_its_curves_at_once_and_reads_them_out(seen: Watched) -> None:
    seen.page.reload()
    chart = seen.page.get_by_role("img", name="Throughput, generated tokens/s")
    expect(chart).to_have_attribute("aria-label", re.compile(r"offline [\d.,]+, online \d"))
    chart.focus()
    for _ in range(12):  # a minute back, to the left end: nothing ran then
        seen.page.keyboard.press("ArrowLeft")
    expect(chart).to_have_attribute("aria-label", re.compile(r"offline (0\.0|–), online (0\.0|–)$"))


def test_a_batch_is_cancelled_after_a_question(rig: GatewayRig, seen: Watched) -> None:
    batch_id = submit(rig, 3000, 200)
    cancel = seen.page.get_by_role("button", name=f"Cancel {batch_id}")
    cancel.click()
    question = seen.page.get_by_role("dialog", name="Cancel this batch?")
    expect(question).to_contain_text(batch_id)
    expect(question.get_by_role("button", name="Keep it running")).to_be_focused()
    seen.page.keyboard.press("Escape")
    expect(question).to_be_hidden()
    assert rig.openai.batches.retrieve(batch_id).status in ("validating", "in_progress")
    cancel.click()
    question.get_by_role("button", name="Cancel the batch").click()
    expect(question).to_be_hidden()
    expect(seen.batch(batch_id)).to_contain_text("cancelled")
    assert rig.openai.batches.retrieve(batch_id).status == "cancelled"
    assert seen.complaints == []


def test_a_late_answer_leaves_the_next_question_open(rig: GatewayRig, seen: Watched) -> None:
    page, held = seen.page, list[Route]()
    first, second = submit(rig, 3000, 200), submit(rig, 3000, 200)
    page.route(f"**/v1/batches/{first}/cancel", lambda route: held.append(route))
    question = page.get_by_role("dialog", name="Cancel this batch?")
    page.get_by_role("button", name=f"Cancel {first}").click()
    question.get_by_role("button", name="Cancel the batch").click()
    page.keyboard.press("Escape")
    page.get_by_role("button", name=f"Cancel {second}").click()
    held[0].continue_()
    expect(seen.batch(first)).to_contain_text("cancelled")
    expect(question).to_contain_text(second)
    question.get_by_role("button", name="Cancel the batch").click()
    expect(seen.batch(second)).to_contain_text("cancelled")
    expect(question).to_be_hidden()
    page.unroute_all()


def test_a_batch_that_cannot_be_cancelled_says_why(rig: GatewayRig, seen: Watched) -> None:
    batch_id = submit(rig, 3000, 200)
    seen.page.get_by_role("button", name=f"Cancel {batch_id}").click()
    rig.openai.batches.cancel(batch_id)
    expect(seen.batch(batch_id)).to_contain_text("cancelled")
    seen.page.get_by_role("button", name="Cancel the batch").click()
    expect(seen.page.get_by_role("alert").filter(has_text="cannot be cancelled")).to_be_visible()
    seen.page.get_by_role("button", name="Keep it running").click()


def test_a_failed_batch_says_why_and_a_finished_one_has_its_files(rig: GatewayRig, seen: Watched) -> None:
    lines = [{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"model": MODEL}}, {"no": "line"}]
    content = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    uploaded = rig.openai.files.create(file=("in.jsonl", content), purpose="batch")
    metadata = {"name": "nightly", "team": "search"}
    made = {"endpoint": "/v1/completions", "completion_window": "24h", "metadata": metadata}
    failed = rig.openai.batches.create(input_file_id=uploaded.id, **made)  # type: ignore[arg-type]
    row = seen.batch(failed.id)
    expect(row).to_contain_text("failed")
    expect(row).to_contain_text("nightly")
    expect(row).to_contain_text("team: search")
    expect(row.locator(".why")).to_contain_text("line 2: ")
    done = seen.batch(submit(rig, 3, 4))
    with seen.page.expect_download() as download:
        done.get_by_role("link", name="Results").click()
    answers = Path(download.value.path()).read_text().splitlines()
    assert [json.loads(each)["response"]["status_code"] for each in answers] == [200] * 3
    expect(done.get_by_role("link", name="Errors")).to_be_hidden()


def test_errors_restarts_and_use_are_shown(rig: GatewayRig, seen: Watched) -> None:
    for _ in range(2):
        assert rig.complete(model="nobody").status_code == 404
    page = seen.page
    expect(page.locator("#http-errors")).to_contain_text(re.compile(r"404 \d"))
    expect(page.get_by_role("table", name=re.compile("^What each key has done"))).to_contain_text("without a key")
    processes = page.get_by_role("table", name=re.compile("^Processes"))
    predictor = processes.get_by_role("row").filter(has_text="predictor")
    expect(predictor.get_by_role("cell").last).to_have_text("0")
    rig.stop("predictor")
    rig.start_predictor()
    expect(predictor.get_by_role("cell").last).to_have_text("1")
    assert page.evaluate("violations") == []


def test_charts_go_back_an_hour_and_a_day(seen: Watched) -> None:
    page = seen.page
    for name, title in (("1 h", "The last hour"), ("1 day", "The last day"), ("5 min", "The last five minutes")):
        page.get_by_role("button", name=name, exact=True).click()
        expect(page.locator("#charts-title")).to_have_text(title)
        expect(page.get_by_role("button", name=name, exact=True)).to_have_attribute("aria-pressed", "true")
        chart = page.get_by_role("img", name="Requests, on executors")
        expect(chart).to_have_attribute("aria-label", re.compile(r"online running \d"))
    assert page.evaluate("violations") == [] and page.locator("#range-problem").inner_text() == ""


def test_what_went_wrong_with_one_range_is_not_said_of_another(seen: Watched) -> None:
    seen.page.route("**/dashboard/history/hour", lambda route: route.abort())
    seen.page.get_by_role("button", name="1 h", exact=True).click()
    problem = seen.page.locator("#range-problem")
    expect(problem).to_have_text("The gateway cannot be reached.")
    seen.page.get_by_role("button", name="5 min", exact=True).click()
    expect(problem).to_have_text("")
    seen.page.unroute("**/dashboard/history/hour")
    seen.complaints.clear()  # the browser's own, of the request that did not come through


def test_a_batch_of_another_day_has_its_date(rig: GatewayRig, chrome: Browser) -> None:
    batch_id = submit(rig, 1, 2)
    with watched(chrome, rig.url) as open_for_days:
        row = open_for_days.batch(batch_id)
        expect(row).to_contain_text("completed")
        day = open_for_days.page.evaluate("new Date().toLocaleDateString()")
        expect(row).not_to_contain_text(day)
        open_for_days.page.clock.set_fixed_time(datetime.now(UTC) + timedelta(days=2))
        expect(row).to_contain_text(re.compile(rf"since {day} \d\d:.*ended {day} \d\d:"))


def test_an_executor_is_drained_after_a_question(rig: GatewayRig, seen: Watched) -> None:
    page = seen.page
    executors = page.get_by_role("table", name="Executors")
    page.get_by_role("button", name="Drain executor-0").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("It gets no new requests")
    dialog.get_by_role("button", name="Leave it as it is").click()
    expect(dialog).to_be_hidden()
    expect(executors).not_to_contain_text("drained")
    page.get_by_role("button", name="Drain executor-0").click()
    dialog.get_by_role("button", name="Drain it").click()
    expect(executors).to_contain_text("drained")
    assert rig.http.get("/ready").status_code == 503
    page.get_by_role("button", name="Undrain executor-0").click()
    dialog.get_by_role("button", name="Undrain it").click()
    expect(executors).not_to_contain_text("drained")
    rig.wait_ready()


def test_it_is_light_or_dark_as_the_system_is_or_as_one_likes(seen: Watched) -> None:
    light = seen.colours()
    seen.page.emulate_media(color_scheme="dark")
    dark = seen.colours()
    assert dark != light
    switch = seen.page.get_by_role("button", name="Theme: auto")
    switch.click()
    assert seen.colours() == light
    seen.page.get_by_role("button", name="Theme: light").click()
    seen.page.emulate_media(color_scheme="light")
    assert seen.colours() == dark
    seen.page.reload()
    expect(seen.page.get_by_role("button", name="Theme: dark")).to_be_visible()
    assert seen.colours() == dark
    seen.page.get_by_role("button", name="Theme: dark").click()
    expect(switch).to_be_visible()
    assert seen.colours() == light


def test_nothing_is_wider_than_the_screen(seen: Watched) -> None:
    expect(seen.page.get_by_role("table", name="Batches")).to_be_visible()
    for width in (390, 700, 1000, 1440):
        seen.page.set_viewport_size({"width": width, "height": 900})
        seen.page.wait_for_function(CHARTS_FIT)
        assert seen.page.evaluate("document.documentElement.scrollWidth") == width
        drain, row = seen.page.get_by_role("button", name="Drain executor-0"), seen.page.locator("#executors tbody tr")
        assert right_edge(drain) == pytest.approx(right_edge(row), abs=1), "buttons are at the end of their row"


def test_it_says_how_old_its_figures_are_comes_back_with_the_gateway_and_asks_for_a_key(
    rig: GatewayRig, seen: Watched
) -> None:
    seen.expect_state("Live")
    rig.stop("gateway")
    seen.expect_state("Stale")
    expect(seen.page.get_by_text("these are the figures of")).to_be_visible()
    expect(seen.page.get_by_role("table", name="Executors")).to_contain_text("executor-0")
    rig.start_gateway("--require-keys", "always", "--api-key", KEY)
    question = seen.page.get_by_role("dialog", name="This gateway needs an API key")
    expect(question).to_be_visible()
    seen.expect_state("Needs a key")
    given = question.get_by_role("textbox", name="API key")
    given.fill("wrong")
    given.press("Enter")
    expect(question.get_by_role("alert")).to_contain_text("not known here")
    given.fill(f"{KEY}\N{ZERO WIDTH SPACE}.")
    given.press("Enter")
    expect(question.get_by_role("alert")).to_contain_text("copy it again")
    given.fill(KEY)
    given.press("Enter")
    seen.expect_state("Live")
    expect(seen.page.get_by_text("these are the figures of")).to_be_hidden()


def test_it_does_not_wait_for_ever_for_an_answer_that_does_not_begin(seen: Watched) -> None:
    """As where the network has lost the connection, or something hangs on the way."""
    held: list[Route] = []
    seen.page.route("**/dashboard/events", lambda route: held.append(route))
    seen.page.reload()
    seen.expect_state("Connecting")
    expect(seen.page.get_by_text("Nothing comes from the gateway. Trying again.")).to_be_visible()
    assert held
    seen.page.unroute("**/dashboard/events")
    seen.expect_state("Live")


@pytest.mark.parametrize("body", ['{"error": "bad gateway"}', '{"error": {"message": ""}}', "<html>"])
def test_it_comes_back_whatever_a_proxy_has_answered(seen: Watched, body: str) -> None:
    seen.page.route("**/dashboard/events", lambda route: route.fulfill(status=502, body=body))
    seen.page.reload()
    expect(seen.page.get_by_text("The gateway answers 502. Trying again.")).to_be_visible()
    seen.page.unroute("**/dashboard/events")
    seen.expect_state("Live")


def test_a_key_is_kept_for_the_tab_until_it_is_forgotten(seen: Watched) -> None:
    seen.page.reload()
    seen.expect_state("Live")
    seen.page.get_by_role("button", name="Forget key").click()
    expect(seen.page.get_by_role("dialog", name="This gateway needs an API key")).to_be_visible()
    assert seen.page.evaluate("Object.keys(sessionStorage)") == []


def test_a_key_of_a_user_watches_and_fetches_results(rig: GatewayRig, chrome: Browser) -> None:
    made = key_command("create", "watcher", "--endpoints", "completions,files,batches,watch", "--nats", rig.nats_url)
    own = rig.openai.with_options(api_key=made)
    wait_until(lambda: rig.http.get("/v1/models", headers=own.auth_headers).status_code == 200, "the key is not known")
    rig.submit_batch([{"model": MODEL, "prompt": "x", "max_tokens": 2}], client=own)
    with watched(chrome, rig.url) as seen:
        given = seen.page.get_by_role("textbox", name="API key")
        given.fill(made)
        given.press("Enter")
        expect(seen.page.get_by_role("banner")).to_contain_text("key watcher, watching")
        expect(seen.page.get_by_role("table", name="Executors")).to_contain_text("executor-0")
        expect(seen.page.get_by_role("button", name="Drain executor-0")).to_be_hidden()
        expect(seen.page.get_by_role("link", name="Results")).to_have_count(1)
        with seen.page.expect_download() as download:
            seen.page.get_by_role("link", name="Results").first.click()
        assert json.loads(Path(download.value.path()).read_text().splitlines()[0])["custom_id"] == "line-0"
        assert seen.page.evaluate("violations") == []


@pytest.fixture(scope="module")
def rig_of_two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    others = json.dumps([{"name": "other", "path": str(model_folder()), "served_model_name": "Other & more"}])
    with GatewayRig(tmp_path_factory.mktemp("several")) as made:
        made.start_executor("executor-0", "--preset", "sarathi++", "--sim-time-scale", "0.3")
        made.start_executor("executor-1", "--preset", "hygen-star", "--offline-qps", "9", "--model-name", "other")
        made.start_offline_queue("--preset", "sarathi++", "--other-models", others)
        made.start_gateway("--require-keys", "never", "--other-models", others)
        made.wait_ready()
        wait_until(lambda: not made.http.get("/ready").json().get("unserved"), made.logs)
        yield made


def test_of_several_models_one_is_chosen_or_all(rig_of_two: GatewayRig, chrome: Browser) -> None:
    batch_id = submit(rig_of_two, 2, 4)
    with watched(chrome, rig_of_two.url) as two:
        choice = two.page.get_by_role("combobox", name="Model")
        expect(choice).to_have_value("")
        expect(choice.locator("option")).to_have_text(["All models", MODEL, "Other & more"])
        executors = two.page.locator("#executors tbody tr")
        expect(executors).to_have_count(2)
        expect(executors.first).to_contain_text(MODEL)
        expect(two.batch(batch_id)).to_contain_text(MODEL)
        choice.select_option("Other & more")
        expect(executors).to_have_count(1)
        expect(executors).to_contain_text("executor-1")
        expect(two.batch(batch_id)).to_have_count(0)
        two.expect_state("Live")
        assert two.page.title() == "Slackwater: Other & more"
        two.page.get_by_role("button", name="1 h").click()
        choice.select_option(MODEL)
        expect(executors).to_contain_text("executor-0")
        expect(two.batch(batch_id)).to_have_count(1)
        assert f"history/hour?model={MODEL}" in "".join(two.requested)
        assert two.complaints == [] and two.page.evaluate("violations") == []


def test_of_one_model_there_is_nothing_to_choose(seen: Watched) -> None:
    expect(seen.page.locator("#model")).to_have_text(MODEL)
    expect(seen.page.locator("#models")).to_be_hidden()


def test_deadlines_are_shown_and_slos_that_no_budget_keeps(chrome: Browser, tmp_path: Path) -> None:
    preset = ("--preset", "bros", "--ttft-slo-ms", "800", "--tpot-slo-ms", "150")
    with GatewayRig(tmp_path) as rig:
        rig.start_executor("executor-0", *preset)
        rig.start_offline_queue(*preset)
        rig.start_gateway("--require-keys", "never")
        rig.wait_ready()
        assert rig.complete().status_code == 200
        with watched(chrome, rig.url) as page_of_bros:
            page = page_of_bros.page
            expect(page.locator("#no-budget")).to_contain_text(
                "First tokens are due within 800 ms, later ones within 150 ms"
            )
            expect(page.locator(".tile", has_text="Time to first token")).to_contain_text("due within 800 ms")
            expect(page.locator("figure", has_text="Time between tokens")).to_contain_text("due150 ms")
            rig.start_predictor()
            rig.start_profiler("--slo", "ttft_p99<=5s")
            expect(page.locator("#budgets")).to_contain_text("preset bros has no latency budget to keep them")
            expect(page.locator("#budgets")).to_contain_text("ttft_p99<=5s")
            assert page.evaluate("violations") == [] and page_of_bros.complaints == []
