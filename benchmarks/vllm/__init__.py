"""vLLM itself beside Slackwater, on this machine."""
