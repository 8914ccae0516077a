"""The page of a run for a browser that shows it while the run goes on: its state, its body, and the script that puts a
newer body in place."""

from __future__ import annotations

import hashlib
import json
import os
from html import escape
from pathlib import Path
from threading import Lock
from typing import Any

from spillway.errors import DoesNotFit, InputError
from spillway.output import identity
from spillway.output.directory_lock import is_held
from spillway.output.records import METRICS
from spillway.report import advice, page
from spillway.report.facts import SUMMARY_FILE, Facts, read

PLANNED = ("config.yaml", "plan.json", identity.DESCRIPTION, identity.SETTINGS)  # files that advice follows from
MEASURED = (METRICS, SUMMARY_FILE, "timeline.json.gz", identity.SO_FAR, identity.TIMELINE, identity.LATE)
STATES = {
    "waiting": "There is no run yet. This page shows the run as soon as its plan is made.",
    "running": "The run goes on. This page follows it.",
    "interrupted": "The run was interrupted or killed. `spillway resume` continues it from its newest durable step.",
    "unfinished": "The run is still running, or it was interrupted: its file system has no locks that would tell.",
    "ended": "The run has ended.",
}

Signature = tuple[tuple[int, int, int], ...]


class LivePage:
    """The page of the run in `output_dir`, which may not exist yet. Each thread may ask for it."""

    def __init__(self, output_dir: Path, profile: str | None = None) -> None:
        """`profile`: predictions are for the machine of that file."""
        self._output_dir, self._profile = output_dir, profile
        self._lock = Lock()
        self._seen: tuple[Signature, str] | None = None  # files and state of `_version`
        self._version = self._body = ""
        self._planned: tuple[Signature, list[advice.Option]] | None = None

    def describe(self, version: str = "") -> dict[str, Any]:
        """State and version of the page, and its body unless the reader has this version of it."""
        with self._lock:
            state = self._refresh()
            told = {"state": state, "words": STATES[state], "version": self._version}
            return told if version == self._version else {**told, "body": self._body}

    def document(self) -> str:
        """The whole page as it is at this moment."""
        told = self.describe()
        status = f'<p id="run-state" data-state="{told["state"]}">{escape(told["words"])}</p>'
        return page.document(self._output_dir.name, status + told["body"], HEAD)

    def _refresh(self) -> str:
        """Renders the page if a file of the run has changed. Returns the state of the run."""
        held = is_held(self._output_dir)
        files = sign(self._output_dir, (*PLANNED, *MEASURED))
        state = find_state(self._output_dir, held)
        if self._seen != (files, state):
            self._body = self._render(state)
            self._version = hashlib.sha256(self._body.encode()).hexdigest()[:16]
            self._seen = files, state
        return state

    def _render(self, state: str) -> str:
        if state == "waiting":
            return f'<header><h1>{escape(self._output_dir.name)}</h1></header><p class="advice">No step yet.</p>'
        try:
            facts = read(self._output_dir)
            if self._profile is not None:
                facts = advice.elsewhere(facts, self._profile)
        except (InputError, DoesNotFit, OSError) as error:
            return f'<p class="advice">The run cannot be shown: {escape(str(error))}</p>'
        return page.body(facts, advice.describe(facts, self._plan_options))

    def _plan_options(self, facts: Facts) -> list[advice.Option]:
        """Plans with other settings once for each plan of the run, since the run needs the CPUs."""
        files = sign(self._output_dir, PLANNED)
        if self._planned is None or self._planned[0] != files:
            self._planned = files, advice.options(facts)
        return self._planned[1]


def find_state(output_dir: Path, held: bool | None) -> str:
    """The key of STATES. `held`: a process has locked the directory; None: unknown."""
    if not (output_dir / "plan.json").is_file():
        return "waiting"
    if held:
        return "running"
    if (output_dir / SUMMARY_FILE).is_file() and not (output_dir / identity.SO_FAR).is_file():
        return "ended"
    return "unfinished" if held is None else "interrupted"


def sign(output_dir: Path, names: tuple[str | Path, ...]) -> Signature:
    """Inode, size and time of each file; zeros for a file that does not exist."""
    return tuple(sign_file(output_dir / name) for name in names)


def sign_file(path: Path) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_size, found.st_mtime_ns


def as_json(told: dict[str, Any]) -> bytes:
    return json.dumps(told).encode()


SCRIPT_PATH, STATE_PATH = "/live.js", "/state.json"
HEAD = f"""<style>#run-state{{position:sticky;top:0;z-index:1;margin:0 0 18px;padding:8px 16px;
background:var(--note);font-size:13px}}#run-state[data-state=running]{{box-shadow:inset 4px 0 var(--c5)}}
#run-state[data-state=interrupted],#run-state[data-state=gone]{{box-shadow:inset 4px 0 var(--c3)}}</style>
<script src="{SCRIPT_PATH}" defer></script>"""

# Only parts of the page that changed are replaced: scroll positions, open details and selected text stay.
SCRIPT = """"use strict";
const PERIOD = 2000;  // milliseconds between two looks
const main = document.querySelector("main"), status = document.getElementById("run-state");
const sources = new Map();  // the HTML of each part as the server wrote it
let version = "";

function name(part) {
  const title = part.querySelector("h2");
  return title ? title.textContent : part.id || part.tagName;
}

function keep(before, after) {
  const open = before.querySelectorAll("details"), wide = before.querySelectorAll(".wide");
  after.querySelectorAll("details").forEach((each, at) => { each.open = Boolean(open[at] && open[at].open); });
  const left = [...wide].map((each) => each.scrollLeft);
  return () => after.querySelectorAll(".wide").forEach((each, at) => { each.scrollLeft = left[at] || 0; });
}

function replace(before, after) {
  const restore = keep(before, after);
  before.replaceWith(after);
  restore();
}

function show(body) {
  const next = document.createElement("template"), parts = new Map();
  next.innerHTML = body;
  for (const part of main.children) if (part !== status) parts.set(name(part), part);
  let last = status;
  const top = window.scrollY;
  for (const part of [...next.content.children]) {
    const key = name(part), source = part.outerHTML, before = parts.get(key);
    parts.delete(key);
    if (before && sources.get(key) === source) {
      last = before;
      continue;
    }
    if (before) replace(before, part);
    else last.after(part);
    sources.set(key, source);
    last = part;
  }
  for (const [key, part] of parts) { part.remove(); sources.delete(key); }
  if (window.scrollY !== top) window.scrollTo(0, top);
}

function say(state, words) {
  if (status.dataset.state !== state) status.dataset.state = state;
  if (status.textContent !== words) status.textContent = words;
}

async function look() {
  try {
    const answer = await fetch("/state.json?version=" + version, {cache: "no-store"});
    if (!answer.ok) throw new Error(answer.status);
    const told = await answer.json();
    if (told.body !== undefined) show(told.body);
    version = told.version;
    say(told.state, told.words);
  } catch (error) {
    say("gone", "The server of this page does not answer. What you see is as of its last answer.");
  }
  window.setTimeout(look, PERIOD);
}

for (const part of main.children) if (part !== status) sources.set(name(part), part.outerHTML);
look();
"""
