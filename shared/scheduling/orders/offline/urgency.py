"""How much a batch's completion window presses."""

CALM_PART = 0.5  # of the window; before that is over, nothing presses
MAX_URGENCY = 64.0
MAX_CLIENT_URGENCY = 4.0  # what it adds against the batches of others


def urgency(now_s: float, created_s: float, due_s: float) -> float:
    """1 in the first half of the window, then twice as much each time what is left of it halves, up to
    ``MAX_URGENCY``; in the last 64th and later it stays there. All are seconds on one clock."""
    calm_s = CALM_PART * (due_s - created_s)
    left_s = due_s - now_s
    if left_s >= calm_s:
        return 1.0
    return min(MAX_URGENCY, calm_s / left_s) if left_s > 0 else MAX_URGENCY
