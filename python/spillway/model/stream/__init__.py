"""Steps and evaluations over the engine's passes."""
