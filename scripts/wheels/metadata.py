"""Lines of a wheel's METADATA that the sources do not know."""

from __future__ import annotations

import re
from pathlib import Path


def write_urls(info: Path, repository: str) -> None:
    """Project-URLs of the repository that publishes, as `[project.urls]` would have them: a fork has its own."""
    if repository:
        urls = {"Repository": "", "Documentation": "/blob/main/docs/README.md", "Issues": "/issues"}
        urls["Changelog"] = "/blob/main/CHANGELOG.md"
        named = "".join(f"Project-URL: {name}, {repository.rstrip('/')}{place}\n" for name, place in urls.items())
        metadata = info / "METADATA"
        metadata.write_text(re.sub(r"(?m)^License-File: ", lambda line: named + line[0], metadata.read_text(), count=1))
