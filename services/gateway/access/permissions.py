"""Which permission of an API key each path of the gateway needs."""

from shared.protocol.access.api_keys import Permission

# A path needs the permission whose prefix it has; all else that is not free needs the one for admins.
PREFIXES: dict[Permission, tuple[str, ...]] = {
    "chat": ("/v1/chat/completions",),
    "completions": ("/v1/completions",),
    "responses": ("/v1/responses",),
    "embeddings": ("/v1/embeddings",),
    "files": ("/v1/files",),
    "batches": ("/v1/batches",),
    "watch": ("/status", "/dashboard"),
    "admin": ("/executors", "/v1/organization"),
}
FREE = ("/v1/models", "/openapi.json", "/tokenize", "/detokenize", "/version")


def needed_permission(path: str) -> Permission | None:
    """None where any key will do."""
    for permission, prefixes in PREFIXES.items():
        if any(_is_below(path, prefix) for prefix in prefixes):
            return permission
    return None if any(_is_below(path, prefix) for prefix in FREE) else "admin"


def _is_below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(f"{prefix}/")
