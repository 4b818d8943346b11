"""/v1/organization/usage/completions: what API keys have used, by day, as OpenAI's API for administrators has it."""

from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Query, Request, Response

from services.gateway.api.context import Context, context_of
from services.gateway.http.operation import JsonResponse, answers, json_of
from shared.openai.errors import RequestError
from shared.protocol.access.key_usage import KeyUsage, UsagePlace, day_of
from shared.protocol.subjects import model_of_token

PATH = "/v1/organization/usage/completions"
DAY_S = 24 * 3600
PAGE_PREFIX = "page_"
GROUPS = ("api_key_id", "model", "batch")

router = APIRouter(tags=["operations"])


class UsageResult(msgspec.Struct, frozen=True):
    """Tokens and requests of a day. A field that was not asked to group by is null; ``api_key_id`` is a key's name."""

    input_tokens: int
    output_tokens: int
    input_cached_tokens: int
    num_model_requests: int
    api_key_id: str | None = None
    model: str | None = None
    batch: bool | None = None
    project_id: None = None
    user_id: None = None
    object: Literal["organization.usage.completions.result"] = "organization.usage.completions.result"


class UsageDay(msgspec.Struct, frozen=True):
    """A day, in UTC; times are unix seconds. Without use it has no results."""

    start_time: int
    end_time: int
    results: list[UsageResult]
    object: Literal["bucket"] = "bucket"


class UsagePage(msgspec.Struct, frozen=True):
    """Days, the oldest first; ``next_page`` asks for those that follow."""

    data: list[UsageDay]
    has_more: bool
    next_page: str | None
    object: Literal["page"] = "page"


@router.get(PATH, **answers(json_of(UsagePage)))
async def key_usage(
    request: Request,
    start_time: Annotated[int, Query(ge=0)],
    end_time: Annotated[int | None, Query(ge=0)] = None,
    bucket_width: Literal["1d"] = "1d",
    api_key_ids: Annotated[list[str] | None, Query()] = None,
    group_by: Annotated[list[str] | None, Query()] = None,
    batch: bool | None = None,
    limit: Annotated[int, Query(ge=1, le=31)] = 7,
    page: Annotated[str | None, Query(max_length=64)] = None,
) -> Response:
    """What API keys have used, by day. Lists may be written as name=a&name=b or name[]=a&name[]=b."""
    context = context_of(request)
    names = api_key_ids or request.query_params.getlist("api_key_ids[]")
    groups = _checked_groups(group_by or request.query_params.getlist("group_by[]"))
    now_s = int(context.clock.unix_s())
    days = _days(_start_of(page) or start_time, now_s + 1 if end_time is None else min(end_time, now_s + 1))
    shown, more = days[:limit], days[limit:]
    usages = [each for each in await context.usage.stored() if _is_asked_for(each[0], names, batch)]
    data = [_day(context, start_s, usages, groups) for start_s in shown]
    return JsonResponse(UsagePage(data, bool(more), f"{PAGE_PREFIX}{more[0]}" if more else None))


def _checked_groups(asked: list[str]) -> list[str]:
    for name in asked:
        if name not in GROUPS:
            raise RequestError(f"group_by: {name!r} is not counted here; there are {', '.join(GROUPS)}", "group_by")
    return asked


def _start_of(page: str | None) -> int | None:
    if page is None:
        return None
    number = page.removeprefix(PAGE_PREFIX)
    if not number.isdecimal():
        raise RequestError(f"page: {page!r} is no next_page of this server", "page")
    return int(number)


def _days(start_s: int, end_s: int) -> range:
    """The starts of all days that have a part in it, however many."""
    return range(start_s // DAY_S * DAY_S, end_s, DAY_S)


def _is_asked_for(place: UsagePlace, names: list[str], batch: bool | None) -> bool:
    return (not names or place.name in names) and batch in (None, place.is_batch)


def _day(context: Context, start_s: int, usages: Iterable[tuple[UsagePlace, KeyUsage]], groups: list[str]) -> UsageDay:
    day = day_of(start_s)
    sums: dict[tuple[str | None, bool | None, str | None], KeyUsage] = {}
    for place, usage in usages:
        if place.day == day:
            group = (
                place.name if "api_key_id" in groups else None,
                place.is_batch if "batch" in groups else None,
                _model_of(context, place) if "model" in groups else None,
            )
            sums[group] = sums.get(group, KeyUsage()) + usage
    results = [_result(sums[group], *group) for group in sorted(sums, key=str)]
    return UsageDay(start_s, start_s + DAY_S, results)


def _model_of(context: Context, place: UsagePlace) -> str:
    """As clients call it now; that in the stack of one that is there no more."""
    if not place.model:
        return context.models.default.served.name
    name = model_of_token(place.model)
    return next((each.served.name for each in context.models if each.name == name), name)


def _result(usage: KeyUsage, name: str | None, batch: bool | None, model: str | None) -> UsageResult:
    counts = usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.num_requests
    return UsageResult(*counts, api_key_id=name, model=model, batch=batch)
