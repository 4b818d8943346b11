"""The page at ``/``: what runs now, and how it went in the last minutes."""
