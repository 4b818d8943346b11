"""What a gateway's ``/metrics`` shows: its own series, and those that vLLM's boards ask for."""
