"""Trains over every NUMA node of the machine, through the command line, and beside it on the first node alone: the
bits are the same, and each chunk, gradient and boundary activation lies where the plan says, asked of the kernel page
by page. Gradients and boundary activations lie on the nodes without CPUs.

Runs inside the virtual machine of machine.py: `python tests/virtual/machine.py -- PYTHON tests/virtual/train_nodes.py`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

MARGIN = 64  # MiB that others, and the files that are read until then, may take of the first node before the run does
HERE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HERE / "tests" / "python" / "support"))
sys.dont_write_bytecode = True


def numa_nodes() -> list[int]:
    words = Path("/sys/devices/system/node/has_memory").read_text().strip()
    ends = [part.split("-") for part in words.split(",")]
    return [node for end in ends for node in range(int(end[0]), int(end[-1]) + 1)]


def main() -> int:
    work = Path(tempfile.mkdtemp())
    os.environ |= {"HOME": str(work), "HF_HOME": str(work), "HF_HUB_OFFLINE": "1", "MPLCONFIGDIR": str(work)}
    import real_runs
    import spillway.run.run
    from spillway import _engine

    spillway.run.run.plot_apart = lambda *_: "not drawn in a machine this slow"
    nodes = numa_nodes()
    print("training", flush=True)
    given = real_runs.inputs(work / "inputs")
    steps = ["--max_steps", "3", "--save_only_model", "true"]
    (first,) = (node for node in json.loads(_engine.choose_nodes([], _engine.resident()))["nodes"] if node["id"] == 0)
    most = ["--node", f"0={first['capacity'] // 2**20 - MARGIN}MiB"]
    shares = [word for node in nodes[1:] for word in ("--node", f"{node}=64MiB")]
    aside = ["--placement", f"grad=numa:{nodes[1]},activation=numa:{nodes[2]}"]
    assert real_runs.here(given, work / "several", *steps, *most, *shares, *aside) == 0
    assert real_runs.here(given, work / "one", *steps, *most) == 0
    summary = json.loads((work / "several" / "summary.json").read_text())
    tiers = {tier["name"]: tier for tier in summary["tiers"]}
    print(json.dumps(tiers), json.dumps(summary["nodes"]))
    assert list(tiers) == [f"numa:{node}" for node in nodes] and len(nodes) == 3
    for name, tier in tiers.items():
        found = summary["nodes"]["nodes"][name]
        assert found["there"] == found["planned"] > 0, (name, found)
        assert tier["planned_peak"] <= tier["capacity"]
    assert summary["nodes"]["elsewhere"] == [] and summary["nodes"]["chunks"] > 0
    for kind in ("activation", "grad"):  # what lies aside, each buffer of it asked for page by page, too
        found = summary["nodes"]["aside"][kind]
        assert found["buffers"] > 0 and found["elsewhere"] == 0, (kind, found)
    plan = json.loads((work / "several" / "plan.json").read_text())
    assert set(plan["boundary_activations"]) == {f"numa:{nodes[2]}"}, plan["boundary_activations"]
    weights = [(work / out / "model.safetensors").read_bytes() for out in ("several", "one")]
    assert weights[0] == weights[1], "the bits depend on the nodes"
    assert real_runs.metrics(work / "several") == real_runs.metrics(work / "one")
    # What a node cannot hold is refused, and the process goes on.
    assert real_runs.here(given, work / "more", *steps, *most, "--node", "1=4GiB") == 3
    assert real_runs.here(given, work / "other", *steps, *most, "--node", "7=64MiB") == 2
    print("three nodes, the same bits")
    return 0


if __name__ == "__main__":
    sys.exit(main())
