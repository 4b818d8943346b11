"""``slackwater replay``: the load generator's command, by default on the stack of the data directory."""

from loadgen.cli import replay_on
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
    """Replay a production trace against an OpenAI-compatible server, beside an offline backlog.

    Requests leave at the trace's own times whatever the server does, and latency counts from those times. The API
    key, where one is needed, is read from SLACKWATER_API_KEY, else from OPENAI_API_KEY.
    """
    replay_on(server_url(server.url, server.data_dir), workload, backlog, reporting, sending)
