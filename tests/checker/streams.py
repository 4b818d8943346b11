"""No stream has a wrong, doubled or missing token; none ends with an error while somebody could have served it; none
hangs; where nothing else is to be done its tokens come as they are made, and without a long pause."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.checker.history import Ended, History, Stream
from tests.checker.violation import Limits, Violation


def check_streams(history: History, limits: Limits) -> Iterator[Violation]:
    for stream in history.streams:
        yield from _wrong_text(stream)
        yield from _wrong_end(stream, history.calm_s)
        yield from _too_long(stream, history.over_s, limits)
    yield from _late([stream for stream in history.streams if stream.sent_s >= history.idle_s], limits)


def _wrong_text(stream: Stream) -> Iterator[Violation]:
    """What has come is the beginning of what is right, and all of it where the stream says that it is whole."""
    text = stream.text
    if not stream.right.startswith(text):
        at = next(
            (n for n, (ours, right) in enumerate(zip(text, stream.right, strict=False)) if ours != right),
            len(stream.right),
        )
        yield Violation("right tokens", f"wrong from character {at} on", stream)
    elif stream.ended is Ended.DONE and text != stream.right:
        yield Violation("right tokens", f"ended after {len(text)} of {len(stream.right)} characters", stream)


def _wrong_end(stream: Stream, calm_s: float) -> Iterator[Violation]:
    if stream.ended is Ended.ERROR and not stream.excuse:
        yield Violation("no stream ends with an error", f"status {stream.status}: {stream.error}", stream)
    elif stream.ended is Ended.BROKEN and not stream.excuse:
        yield Violation("no stream breaks off", stream.error, stream)
    elif stream.ended is Ended.REFUSED and stream.pieces:
        yield Violation("no stream ends with an error", "refused after its first token", stream)
    elif stream.ended is Ended.REFUSED and stream.sent_s >= calm_s:
        yield Violation("all is well at the end", f"refused with {stream.status}: {stream.error}", stream)


def _too_long(stream: Stream, over_s: float, limits: Limits) -> Iterator[Violation]:
    took_s = (over_s if stream.ended_s is None else stream.ended_s) - stream.sent_s
    if stream.ended is Ended.OPEN:
        yield Violation("no stream hangs", f"it has not ended after {took_s:.0f} s", stream)
    elif took_s > limits.stream_s and stream.ended is not Ended.LEFT:
        yield Violation("no stream hangs", f"it took {took_s:.0f} s", stream)


def _late(streams: Sequence[Stream], limits: Limits) -> Iterator[Violation]:
    """Of those that had the whole system to themselves. One of them may come in one piece, where this machine stood
    still meanwhile; not all."""
    for stream in streams:
        from_s, to_s = stream.longest_pause
        if to_s - from_s > limits.idle_pause_s:
            what = f"a pause of {to_s - from_s:.1f} s with nothing else to do"
            yield Violation("no stream waits for nothing", what, stream)
    streamed = [stream for stream in streams if stream.ended is Ended.DONE and not stream.is_whole]
    if streamed and all(len({piece.at_s for piece in stream.pieces}) < 2 for stream in streamed):
        what = f"none of {len(streamed)} came in more than one piece"
        yield Violation("tokens come as they are made", what, streamed)
