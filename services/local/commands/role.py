"""``slackwater role``: of which pool an executor is."""

import asyncio
from typing import Annotated

import typer

from services.local.commands.asked_stack import AskedStackOptions
from services.local.commands.drain import ExecutorName
from services.local.commands.parameters import JsonOption
from shared.json_text import json_text
from shared.protocol.executors import Heartbeat
from shared.scheduling.placement.role import Role
from shared.settings.command_options import with_option_groups

RoleName = Annotated[
    Role,
    typer.Argument(
        metavar="ROLE",
        help="strict: for what online requests generate; relaxed: for prompts; mixed: for both.",
        show_choices=False,
    ),
]


@with_option_groups
def role(executor_id: ExecutorName, role: RoleName, stack: AskedStackOptions, as_json: JsonOption = False) -> None:
    """Put a running executor into another pool. Requests that it has go on.

    Where nobody is of the other pool, it serves everything, as if it were mixed. It stays what it is told to be until
    it is started anew: then its setting counts.
    """
    beat = asyncio.run(_set(stack, executor_id, role))
    said = {"executor_id": beat.info.executor_id, "role": beat.info.role}
    print(json_text(said) if as_json else f"{beat.info.executor_id} is {beat.info.role}")


async def _set(options: AskedStackOptions, executor_id: str, role: Role) -> Heartbeat:
    async with options.opened("role") as stack:
        return await stack.set_role(executor_id, role)
