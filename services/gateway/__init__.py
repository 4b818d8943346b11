"""HTTP and SSE outside, the bus inside: OpenAI's API for completions, files and batches."""
