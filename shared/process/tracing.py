"""OpenTelemetry spans of one process, told to a collector by OTLP over HTTP.

Where no endpoint is named no span is made, nothing of it is loaded, and what asks for spans gets ``NO_SPAN``. A span's
``traceparent`` goes with messages: W3C's trace context, of which the flag says that it is recorded.
"""

from __future__ import annotations

import threading
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from shared.errors import ConfigError

NS = 1_000_000_000
LOST_QUIETLY = 4096  # spans that wait for a collector; beyond it the oldest are dropped
CLOSE_S = 3.0  # of a process that is killed soon
PROPAGATOR = TraceContextTextMapPropagator()

Attributes = dict[str, str | int | float | bool]


class Span:
    """One that goes on, or none."""

    def __init__(self, span: trace.Span | None = None) -> None:
        self._span = span if span is not None and span.is_recording() else None

    @property
    def traceparent(self) -> str:
        """For what is done because of it; empty where it is not recorded."""
        if self._span is None:
            return ""
        carrier: dict[str, str] = {}
        PROPAGATOR.inject(carrier, trace.set_span_in_context(self._span))
        return carrier["traceparent"]

    @property
    def trace_id(self) -> str:
        """For a line in the log; empty where it is not recorded."""
        return trace.format_trace_id(self._span.get_span_context().trace_id) if self._span is not None else ""

    def event(self, name: str, at_s: float, **attributes: str | int | float | bool) -> None:
        """``at_s``: unix time, as everywhere here."""
        if self._span is not None:
            self._span.add_event(name, attributes, round(at_s * NS))

    def say(self, attributes: Attributes, name: str = "") -> None:
        """What is known of it by now."""
        if self._span is not None:
            self._span.set_attributes(attributes)
            if name:
                self._span.update_name(name)

    def end(self, at_s: float, error: str = "") -> None:
        """It is told after this; a second call changes nothing."""
        if self._span is not None:
            if error:
                self._span.set_status(Status(StatusCode.ERROR, error))
            self._span.end(round(at_s * NS))


NO_SPAN = Span()


class Tracing:
    """``share``: of the traces that begin here; those that come from elsewhere are recorded as their beginning says."""

    def __init__(self, endpoint: str, service: str, instance: str = "", share: float = 1.0) -> None:
        """Raises ConfigError where the package for it is not installed."""
        self._provider = _provider(endpoint, service, instance, share) if endpoint else None
        self._tracer = None if self._provider is None else self._provider.get_tracer("slackwater")

    @property
    def is_on(self) -> bool:
        return self._tracer is not None

    def begin(
        self, name: str, at_s: float, parent: str = "", attributes: Attributes | None = None, is_served: bool = False
    ) -> Span:
        """``parent``: a traceparent; what is none begins a trace. ``is_served``: it answers a request of another
        process."""
        if self._tracer is None:
            return NO_SPAN
        kind = SpanKind.SERVER if is_served else SpanKind.INTERNAL
        context = PROPAGATOR.extract({"traceparent": parent})
        return Span(self._tracer.start_span(name, context, kind, attributes, start_time=round(at_s * NS)))

    def begin_within(self, name: str, at_s: float, parent: str, attributes: Attributes | None = None) -> Span:
        """``parent``: the traceparent of what it is a part of; no span where that is not recorded."""
        return self.begin(name, at_s, parent, attributes) if parent else NO_SPAN

    def note(self, name: str, from_s: float, to_s: float, parent: str, attributes: Attributes | None = None) -> None:
        """One that is over."""
        self.begin(name, from_s, parent, attributes).end(to_s)

    def close(self) -> None:
        """Tell what is not told yet; what the collector has not taken in CLOSE_S is lost."""
        if self._provider is not None:
            closing = threading.Thread(target=self._provider.shutdown, daemon=True)  # its own wait is of half a minute
            closing.start()
            closing.join(CLOSE_S)


def _provider(endpoint: str, service: str, instance: str, share: float) -> Any:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise ConfigError("spans need a package that is not there: pip install 'slackwater[traces]'") from error
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    about = {"service.name": f"slackwater-{service}"} | ({"service.instance.id": instance} if instance else {})
    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(share)), resource=Resource.create(about), shutdown_on_exit=False
    )
    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=5)
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=LOST_QUIETLY))
    return provider


NO_TRACING = Tracing("", "")
