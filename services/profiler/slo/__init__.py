"""SLO-aware profiling: the largest latency budget, or offline rate, that keeps every SLO (HyGen section 4.2)."""
