"""How a whole stack bears more than it can do, and hours of what it can."""
