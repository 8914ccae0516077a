"""The check of kinds, fed with lines that compare one with a name and with lines that only name one."""

import subprocess
import sys
from pathlib import Path

from folders import REPOSITORY


def check(tree: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, REPOSITORY / "scripts" / "check_kinds.py", tree]
    return subprocess.run(command, capture_output=True, text=True)


def write(tree: Path, lines: list[tuple[str, str]]) -> Path:
    (tree / "spillway").mkdir()
    for file, line in lines:
        (tree / file).parent.mkdir(parents=True, exist_ok=True)
        (tree / file).write_text(f"\n{line}\n")
    return tree


def test_this_tree_compares_none() -> None:
    result = check(REPOSITORY)
    assert result.returncode == 0, result.stdout


def test_refused(tmp_path: Path) -> None:
    refused = [
        ("python/bindings/engine.cc", "using enum spillway::plan::PassKind;", "PassKind"),
        ("spillway/device/cuda_launch.cc", "if (o != kernels::Optimizer::adamw) fail();", "Optimizer"),
        ("spillway/execute/passes.cc", "    case plan::PassKind::backward:", "PassKind"),
        ("spillway/execute/squares.cc", "if (block.role == state::BlockRole::layer) continue;", "BlockRole"),
        ("spillway/execute/step.cc", "scales_loss = type == state::ComputeType::fp16;", "ComputeType"),
        ("spillway/execute/tiers.cc", "return plan::TierKind::host != kind;", "TierKind"),
        ("spillway/plan/link.cc", "return task.moves(Lane::read, ObjectKind::state);", "ObjectKind"),
        ("spillway/plan/placement.cc", "return form == state::Form::nf4;", "Form"),
        ("spillway/plan/room.cc", "std::ranges::find(nodes, NodeKind::file, &NodeBudget::kind)", "NodeKind"),
        ("spillway/plan/simulate.cc", "if (buffer.tier == TierKind::device) return;", "TierKind"),
        ("spillway/subspace/update.cc", "    case Moments::int8:", "Moments"),
    ]
    result = check(write(tmp_path, [(file, line) for file, line, _ in refused]))
    assert result.returncode == 1
    for said, (file, _, kind) in zip(result.stdout.splitlines(), refused, strict=False):
        assert said.startswith(f"{file}:2: compares {kind} by name;"), said
    assert result.stdout.splitlines()[-1].startswith(f"kinds: {len(refused)} ")


def test_allowed(tmp_path: Path) -> None:
    allowed = [
        ("spillway/plan/kinds.h", "return kind == TierKind::host;"),
        ("spillway/plan/step/uses.cc", "it.what = {ObjectKind::saved, layer};"),
        ("spillway/plan/saved_choice.cc", "plan.path_breakdown.find(traits(ObjectKind::saved).name);"),
        ("spillway/plan/placement.cc", "return form != state::Form::as_run;"),
        ("spillway/execute/names.cc", "if (kind == journal::ObjectKind::snapshot) return;"),
        ("spillway/execute/step.cc", "TierKind tier = TierKind::host;"),
        ("tests/plan/link_test.cc", "EXPECT_TRUE(tier == TierKind::host);"),
    ]
    result = check(write(tmp_path, allowed))
    assert result.returncode == 0, result.stdout
