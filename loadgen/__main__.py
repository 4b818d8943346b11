"""``python -m loadgen replay``."""

import typer

from loadgen.cli import replay

app = typer.Typer(add_completion=False, no_args_is_help=True)
app.command()(replay)


@app.callback()
def main() -> None:
    """Load for OpenAI-compatible servers."""


if __name__ == "__main__":
    app(prog_name="python -m loadgen")
