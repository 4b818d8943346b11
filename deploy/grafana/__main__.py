"""Writes dashboards/slackwater.json: ``python -m deploy.grafana``."""

from pathlib import Path

from deploy.grafana.board import board
from shared.json_text import json_text

FILE = Path(__file__).with_name("dashboards") / "slackwater.json"

if __name__ == "__main__":
    FILE.write_text(json_text(board()) + "\n")
