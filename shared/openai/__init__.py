"""OpenAI's request and response shapes for completions, free of any web framework."""
