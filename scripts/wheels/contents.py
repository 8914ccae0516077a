"""What is laid into a wheel beside the package: the notices of others' work, and a bill of materials (PEP 770)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component as Part
from cyclonedx.model.component import ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from wheels.components import Component
from wheels.metadata import write_urls

THIRD_PARTY = "third-party"  # folder of the notices, below the wheel's licenses


def add(wheel: Path, parts: Sequence[Component], place: Path) -> Path:
    """Packs `wheel` anew with the notices and the bill; returns the new file, in `place`."""
    tool = [sys.executable, "-m", "wheel"]
    subprocess.run([*tool, "unpack", "--dest", place, wheel], check=True, stdout=subprocess.DEVNULL)
    (folder,) = (path for path in place.iterdir() if path.is_dir())
    (info,) = folder.glob("*.dist-info")
    write_notices(info, parts)
    write_urls(info, os.environ.get("SPILLWAY_REPOSITORY", ""))
    write_bill(info, parts)
    subprocess.run([*tool, "pack", "--dest-dir", place, folder], check=True, stdout=subprocess.DEVNULL)
    (packed,) = place.glob("*.whl")
    return packed


def write_notices(info: Path, parts: Sequence[Component]) -> None:
    """A file for each, named in the metadata as PEP 639 has it."""
    folder = info / "licenses" / THIRD_PARTY
    folder.mkdir(parents=True)
    for part in parts:
        head = f"{part.name} {part.version}\n{part.licence}\n\n"
        (folder / f"{part.name}.txt").write_text(head + part.text())
    named = "".join(f"License-File: {THIRD_PARTY}/{part.name}.txt\n" for part in parts)
    metadata = info / "METADATA"
    metadata.write_text(re.sub(r"(?m)^License-File: .*\n", lambda line: line[0] + named, metadata.read_text(), count=1))


def write_bill(info: Path, parts: Sequence[Component]) -> None:
    """CycloneDX 1.6, the same bytes for the same parts."""
    name, version = info.name.removesuffix(".dist-info").split("-")
    whole = described(name, version, f"pkg:pypi/{name}@{version}", "Apache-2.0")
    whole.type = ComponentType.APPLICATION
    bill = Bom(metadata=BomMetaData(component=whole))
    inside = [described(part.name, part.version, part.purl, part.licence) for part in parts]
    bill.components.update(inside)
    bill.register_dependency(whole, inside)
    bill.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, " ".join(part.bom_ref.value or "" for part in (whole, *inside)))
    content = json.loads(JsonV1Dot6(bill).output_as_string())
    del content["metadata"]["timestamp"]
    (info / "sboms").mkdir()
    (info / "sboms" / f"{name}.cdx.json").write_text(json.dumps(content, indent=2) + "\n")


def described(name: str, version: str, purl: str, licence: str) -> Part:
    return Part(
        name=name,
        version=version or None,
        bom_ref=purl,
        purl=PackageURL.from_string(purl),
        licenses=[LicenseFactory().make_from_string(licence)],
    )
