"""The command line with the fake session behind it, as a process of its own."""

import sys
from types import ModuleType

from fake_session import FakeSession
from spillway.cli import main

module = ModuleType("spillway.run.session")
module.EngineSession = FakeSession  # type: ignore[attr-defined]
sys.modules["spillway.run.session"] = module

if __name__ == "__main__":
    sys.exit(main())
