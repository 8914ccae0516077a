"""The model on `meta`, its parts, and its own code around its layers."""
