"""``slackwater replay``: the load generator's command, by default on the stack of the data directory."""

from loadgen import cli
from loadgen.options import OfflineOptions, ReportOptions, SendingOptions, WorkloadOptions
from services.local.commands.server import ServerOptions, server_url
from shared.settings.command_options import with_option_groups


@with_option_groups
def replay(
    workload: WorkloadOptions,
    backlog: OfflineOptions,
    reporting: ReportOptions,
    sending: SendingOptions,
    server: ServerOptions,
) -> None:
    cli.replay_on(server_url(server.url, server.data_dir), workload, backlog, reporting, sending)


replay.__doc__ = cli.replay.__doc__
