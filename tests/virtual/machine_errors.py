"""Why there is no virtual machine here."""


class CannotStart(Exception):
    """Something that it takes is missing; the message says what, and what brings it."""
