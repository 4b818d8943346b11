"""The model behind the endpoints: what clients call it, and how long a request may be."""

import msgspec

from shared.openai.errors import RequestError


class ServedModel(msgspec.Struct, frozen=True):
    """The model behind the endpoints."""

    name: str
    max_model_len: int  # tokens, prompt and output together
    max_prompt_tokens: int | None = None  # None: as the context allows
    permitted: list[str] | None = None  # names that whoever asks may ask for; None: any

    def permits(self, name: str) -> bool:
        """Whether who asks may ask for it, whatever it is."""
        return self.permitted is None or name in self.permitted

    def check(self, name: str) -> None:
        """Raises RequestError (404) for the name of another one, or one that is not permitted."""
        if not self.permits(name):
            message = f"the model {name!r} does not exist or you do not have access to it"
            raise RequestError(message, "model", "model_not_found", 404)
        if name != self.name:
            message = f"the model {name!r} does not exist; this server has {self.name!r}"
            raise RequestError(message, "model", "model_not_found", 404)
