#!/usr/bin/env python3
"""Makes pictures of the documentation from runs of the commands that they show: docs/images/plan.svg and report.png.

    scripts/make_screens.py [plan] [report]    both without a name

`plan` is the command of docs/how-to/gpu.md: recipes/gpu-24gib.yaml for the profile rtx-4090. `report` trains a small
model on Shakespeare's text, and photographs the top of its page in Chromium.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
COMMAND = Path(sys.executable).with_name("spillway")
PLAN = "spillway plan full.yaml --profile rtx-4090"
SHAPE = "Qwen2.5-14B"  # of the recipe
LONG_TABLES = ("What was compared", "What fits")  # that the picture leaves out
COLUMNS = 112
PAGE = (1000, 1180)  # width and height of the picture of a report, in pixels
STEPS = 60


def run(command: str, folder: Path, **environment: str) -> str:
    """The standard output of a command in `folder`."""
    words = [str(COMMAND), *command.split()[1:]]
    done = subprocess.run(
        words, cwd=folder, env=os.environ | environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def leave_out(text: str, titles: tuple[str, ...]) -> str:
    """The output of a command without the tables of these titles and their captions. Dots show each gap."""
    kept: list[str] = []
    is_out = False
    for line in text.splitlines():
        plain = re.sub(r"\x1b\[[0-9;]*m", "", line)
        if plain.startswith(titles):
            is_out = True
            kept.append("...")
        elif is_out and re.match(r"Weights and|What would help", plain):
            is_out = False
        if not is_out:
            kept.append(line)
    return "\n".join(kept)


def draw_terminal(text: str, title: str) -> str:
    """The SVG of a terminal with this text. It takes the reader's own monospaced font, and fetches nothing."""
    console = Console(width=COLUMNS, record=True, file=open(os.devnull, "w"), highlight=False)
    console.print(Text.from_ansi(text))
    template = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.S)
    template = template.replace("Fira Code", "DejaVu Sans Mono")
    return console.export_svg(title=title, theme=DIMMED_MONOKAI, code_format=template, unique_id="plan")


def make_plan(folder: Path) -> None:
    sys.path.append(str(ROOT / "bench"))
    import model_shapes

    directory = model_shapes.write(folder, SHAPE)
    shutil.copy(ROOT / "recipes" / "gpu-24gib.yaml", folder / "full.yaml")
    text = run(f"{PLAN} --model {directory}", folder, COLUMNS=str(COLUMNS), FORCE_COLOR="1")
    svg = draw_terminal(leave_out(text, LONG_TABLES), PLAN)
    (IMAGES / "plan.svg").write_text(svg, encoding="utf-8")


def make_report(folder: Path) -> None:
    from spillway.demo.sample_model import make_model

    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not browser:
        sys.exit("make_screens.py: no Chromium is installed (apt-get install chromium)")
    (folder / "storage").mkdir()
    rows = ROOT / "samples" / "shakespeare.train.txt"
    make_model(folder / "small-model", rows.read_text(encoding="utf-8"), seed=1)
    shutil.copy(rows, folder / "rows.txt")
    run(
        "spillway train --model small-model --dataset rows.txt --output_dir runs/first "
        "--storage storage,endurance=600TB --placement path --packing --max_length 128 --per_device_train_batch_size 4 "
        f"--max_steps {STEPS} --learning_rate 3e-3 --lr_scheduler_type cosine --dram_budget 1GiB",
        folder,
    )
    picture = folder / "page.png"
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={folder / 'browser'}",
    ]
    size = f"--window-size={PAGE[0]},{PAGE[1]}"
    page = folder / "page.html"
    text = (folder / "runs" / "first" / "report.html").read_text(encoding="utf-8")
    page.write_text(text.replace(f"{folder}/", ""), encoding="utf-8")  # paths from the working directory on
    words = [browser, *flags, size, f"--screenshot={picture}", page.as_uri()]
    subprocess.run(words, check=True, stderr=subprocess.DEVNULL)
    compress(picture, IMAGES / "report.png")


def compress(picture: Path, target: Path) -> None:
    from PIL import Image

    with Image.open(picture) as image:
        image.convert("RGB").save(target, optimize=True)


MAKERS = {"plan": make_plan, "report": make_report}


def main() -> None:
    for name in sys.argv[1:] or MAKERS:
        with tempfile.TemporaryDirectory() as folder:
            MAKERS[name](Path(folder))


if __name__ == "__main__":
    main()
