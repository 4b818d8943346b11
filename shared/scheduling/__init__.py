"""The pure core: what runs in the next step, and on which KV blocks. No asyncio, bus, torch, clock or environment."""
