"""HEAD, by which monitors and load balancers look whether something is there."""

from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send


@dataclass(frozen=True, slots=True)
class HeadRequests:
    """Around everything else: each is answered as GET, without the body. What would be sent of it is not waited for: a
    stream of events has no end."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return
        has_ended = False

        async def without_body(message: Message) -> None:
            nonlocal has_ended
            if message["type"] == "http.response.start":
                await send(message)
            elif not has_ended:
                has_ended = True
                await send({"type": "http.response.body", "body": b""})  # from here on the client is as good as gone

        await self.app({**scope, "method": "GET"}, receive, without_body)
