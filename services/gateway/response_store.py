"""Responses that clients ask for again, or go on from. The server of the bus deletes what is too old."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from services.gateway.tenants import Tenant
from shared.bus import Bucket
from shared.errors import NotFoundOnBusError
from shared.openai.errors import RequestError
from shared.openai.objects import is_well_formed
from shared.protocol.responses import StoredResponse


@dataclass(frozen=True, slots=True)
class ResponseStore:
    """``bucket``: None where none is stored."""

    bucket: Bucket[StoredResponse] | None

    @property
    def is_on(self) -> bool:
        return self.bucket is not None

    async def add(self, response: StoredResponse) -> None:
        """Raises BusError."""
        assert self.bucket is not None
        await self.bucket.create(response.id, response)

    async def get(self, response_id: str, tenant: Tenant, param: str = "response_id") -> StoredResponse:
        """``tenant``: who asks. Another one's is as good as absent. Raises BusError, and RequestError (404; ``param``
        is the field that the id came in)."""
        if self.bucket is not None and is_well_formed(response_id):
            with contextlib.suppress(NotFoundOnBusError):
                found = (await self.bucket.get(response_id)).value
                if found is not None and tenant.sees(found):
                    return found
        code = "not_found" if param == "response_id" else "previous_response_not_found"
        raise RequestError(f"no such response: {response_id}", param, code, 404)

    async def delete(self, response_id: str, tenant: Tenant) -> None:
        """Those that have gone on from it have what they need of it. Raises RequestError (404) and BusError."""
        await self.get(response_id, tenant)
        assert self.bucket is not None
        await self.bucket.delete(response_id)
