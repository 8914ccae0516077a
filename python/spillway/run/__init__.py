"""A training run: `train` goes from a configuration to a finished run, `session` joins model and C++ engine, `loop`
takes the steps, and `verify`, `export` and `comparison` look at a run afterwards or beside plain PyTorch."""
