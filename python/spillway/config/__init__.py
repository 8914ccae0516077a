"""The configuration of a run: `keys` is the one table of keys, `resolve` makes a `Config` of command line, file and
defaults, and `checks` refuses everything that can be refused before PyTorch is imported."""

from spillway.config.resolve import CONFIG_HEADER, Config, normalised, parsed, read_file, resolve, unknown_key

__all__ = ["CONFIG_HEADER", "Config", "normalised", "parsed", "read_file", "resolve", "unknown_key"]
