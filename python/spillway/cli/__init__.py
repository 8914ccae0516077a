"""The command line: `command` has the verbs and exit codes, `arguments` the words, `help` the key table as text."""

from spillway.cli.command import VERBS, main, quiet_libraries

__all__ = ["VERBS", "main", "quiet_libraries"]
