"""The wheels: how they are built, what of others is in them, and how one is tried on a bare machine."""
