"""Three executors whose roles change all the time, under requests of both kinds, aborts among them: each request ends
once, with every token, and nothing is left."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from shared.protocol import subjects
from shared.protocol.executors import Heartbeat
from shared.protocol.handover import SetRole
from shared.protocol.profiling.budgets import BudgetRecord
from shared.protocol.profiling.latency_models import LatencyModelRecord, LinearCoefficients
from shared.protocol.requests import AbortRequests, GenerateRequest
from shared.protocol.sampling import FinishReason
from shared.scheduling.placement.role import Role
from shared.scheduling.request import Kind
from shared.scheduling.strategy import Strategy
from shared.text.tokenizer import Tokenizer
from tests.services.executor.handover.rig import Client, client, make_request, running, sim_settings, until

EXECUTORS = ("a", "b", "c")
NUM_REQUESTS, NUM_SWAPS = 60, 12
OOCO = Strategy.of("ooco")


async def tune(gateway: Client, profile_key: str) -> None:
    """So that offline requests have a time to fit."""
    models = await gateway.bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)
    budgets = await gateway.bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord)
    coefficients = LinearCoefficients((1.0, 0.1, 0.0, 0.001, 0.0, 0.0, 0.1, 0.0))
    await models.put(profile_key, LatencyModelRecord(profile_key, coefficients, 9, 0.0, 0.0))
    await budgets.put(profile_key, BudgetRecord(profile_key, 40.0, "fixed"))


def make_requests(rng: Random) -> list[GenerateRequest]:
    """A third of them offline; prompts begin alike, so that some blocks are found in caches."""
    made = []
    for number in range(NUM_REQUESTS):
        kind = Kind.OFFLINE if number % 3 == 0 else Kind.ONLINE
        request = make_request(number % 7, kind, rng.randint(20, 300), rng.randint(4, 200))
        made.append(replace(request, request_id=f"request-{number}"))
    return made


async def run_alone(
    gateway: Client, nats_url: str, folder: Path, tokenizer: Tokenizer, requests: list[GenerateRequest]
) -> dict[str, list[int]]:
    async with running(nats_url, sim_settings(folder, "alone", "mixed", strategy=OOCO), tokenizer) as alone:
        await tune(gateway, alone.info.profile_key)
        await gateway.send("alone", requests)
        await gateway.until_ended(len(requests))
    outputs = {**gateway.outputs}
    for each in (gateway.outputs, gateway.ended, gateway.said_by):
        each.clear()
    return outputs


@pytest.mark.parametrize("seed", range(2))
async def test_nothing_is_lost_or_doubled(nats_url: str, model_folder: Path, tokenizer: Tokenizer, seed: int) -> None:
    rng = Random(seed)
    requests = make_requests(rng)
    aborted = [request.request_id for request in rng.sample(requests, 6)]
    async with client(nats_url) as gateway, AsyncExitStack() as stack:
        await gateway.bus.ensure_streams()
        expected = await run_alone(gateway, nats_url, model_folder, tokenizer, requests)
        made = []
        for executor_id in EXECUTORS:
            settings = sim_settings(model_folder, executor_id, "relaxed", strategy=OOCO, kv_blocks=400)
            made.append(await stack.enter_async_context(running(nats_url, settings, tokenizer)))
        sending = asyncio.create_task(send_slowly(gateway, requests))
        for swap in range(NUM_SWAPS):
            strict = rng.choice(EXECUTORS)
            for executor_id in EXECUTORS:
                role = Role.STRICT if executor_id == strict else rng.choice((Role.RELAXED, Role.RELAXED, Role.MIXED))
                await gateway.bus.request(subjects.role(executor_id), SetRole(role), Heartbeat)
            if swap == NUM_SWAPS // 2:
                for executor_id in EXECUTORS:
                    await gateway.bus.publish(subjects.inbox(executor_id), AbortRequests(aborted))
            await asyncio.sleep(rng.uniform(0.15, 0.45))
        await sending
        await until(lambda: not any(each._replica.has_work for each in made), 120.0)
        await gateway.until_ended(NUM_REQUESTS)
        for request_id, reason in gateway.ended.items():
            if reason is FinishReason.ABORT:
                assert request_id in aborted
                assert gateway.outputs[request_id] == expected[request_id][: len(gateway.outputs[request_id])]
            else:
                assert (reason, gateway.outputs[request_id]) == (FinishReason.LENGTH, expected[request_id])
        assert len(gateway.taken) > NUM_REQUESTS // 4
        for service in made:
            pool = service._replica.pool
            await until(lambda: pool.num_free == service.info.spec.num_blocks)  # noqa: B023 - awaited here
            pool.check_integrity()
            service._replica.table.check_integrity()
        totals = [service._replica.totals for service in made]
        assert sum(each.handed_over for each in totals) == sum(each.taken_over for each in totals) == len(gateway.taken)


async def send_slowly(gateway: Client, requests: list[GenerateRequest]) -> None:
    for number, request in enumerate(requests):
        await gateway.send(EXECUTORS[number // 2 % len(EXECUTORS)], [request])
        await asyncio.sleep(0.05)
