"""README and the how-to pages do what they say: their blocks run as printed, and their links lead somewhere.

Blocks of a page run one after the other in a folder that has what the pages speak of: a Mamba-2 with random weights and
texts. `make test` runs them with SMALLER sizes, `make acceptance` as they stand. A block is left out only where a comment
before it says why, with one of REASONS.
"""

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lengthen.cli import main
from lengthen.data import bundled_plays
from tests.conftest import tiny_mamba2

ROOT = Path(__file__).parents[1]
NAMES = ["own-model", "own-data", "own-trainer", "training", "cluster", "tasks", "long-evaluation", "lm-eval"]
NAMES += ["training-free", "why-models-break", "tutorial"]
PAGES = ["README.md", *(f"docs/{name}.md" for name in NAMES)]
REASONS = {"takes minutes", "needs a GPU", "needs several machines", "needs the hub"}
BLOCK = re.compile(r"(?:<!-- not run: (?P<reason>[^>]*) -->\n)?```(?P<kind>sh|python)\n(?P<text>.*?)```", re.DOTALL)
SMALLER = [
    (r"--train-context \d+", "--train-context 32"),
    (r"--max-length \d+", "--max-length 256"),
    (r"--steps \d+", "--steps 2"),
    (r"--save-steps \d+", "--save-steps 1"),
    (r"--lengths \S+", "--lengths 512"),
    (r"--n \d+", "--n 1"),
    (r"--tasks passkey,niah-multikey,babilong-qa1", "--tasks passkey,babilong-qa1"),
    (r"--task passkey --train-context 32", "--task passkey --train-context 512"),
    (r"range\(500\)", "range(2)"),
    (r"max_steps=20", "max_steps=2"),
    (r"steps=20", "steps=2"),
]


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """The folder where a reader sits."""
    plays = "\n".join(play.text for half in bundled_plays() for play in half)
    tiny_mamba2().save_pretrained(tmp_path / "my-mamba2")
    (tmp_path / "train.txt").write_text(plays)
    (tmp_path / "held-out.txt").write_text(plays)
    (tmp_path / "held-out.jsonl").write_text("".join(json.dumps({"text": plays[:9000]}) + "\n" for _ in range(16 * 16)))
    question = {"input": "Mary went to the garden.", "question": "Where is Mary?", "target": "garden"}
    (tmp_path / "questions.jsonl").write_text((json.dumps(question) + "\n") * 4)
    for folder in ("examples", "tests"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def require_extra(page):
    """Skips a page about an extra that is not installed."""
    if page == "docs/lm-eval.md":
        pytest.importorskip("lm_eval", reason="lm-eval is an extra")


def blocks(page):
    """(kind, text, reason not to run it or None) of a page."""
    found = list(BLOCK.finditer((ROOT / page).read_text(encoding="utf-8")))
    assert found and {block["reason"] for block in found} <= {None, *REASONS}
    return [(block["kind"], block["text"], block["reason"]) for block in found]


def smaller(text):
    """The block with sizes that take seconds."""
    for printed, small in SMALLER:
        text = re.sub(printed, small, text)
    return text


@pytest.mark.parametrize("page", PAGES)
def test_blocks_run_in_small(desk, capsys, monkeypatch, page):
    require_extra(page)
    monkeypatch.setattr(sys, "argv", ["lengthen"])
    namespace = {"__name__": "page"}
    for kind, text, reason in blocks(page):
        if reason is not None:
            continue
        if kind == "python":
            exec(compile(smaller(text), page, "exec"), namespace)
        elif kind == "sh":
            for line in smaller(re.sub(r"\\\n *", "", text)).splitlines():
                words = shlex.split(line, comments=True)
                if words[:1] == ["lengthen"]:
                    with pytest.raises(SystemExit) as end:
                        main(words[1:])
                    assert end.value.code == 0, (line, capsys.readouterr().err)
                elif words:
                    assert words[0] == "python", f"{page} has a command that is not run: {line}"
                    runpy.run_path(words[1], run_name="__main__")


@pytest.mark.acceptance
@pytest.mark.parametrize("page", PAGES)
def test_blocks_run_as_printed(desk, page):
    require_extra(page)
    commands = desk / "bin"
    commands.mkdir()
    for name, program in (("lengthen", f"{sys.executable} -m lengthen"), ("python", sys.executable)):
        (commands / name).write_text(f'#!/bin/sh\nexec {program} "$@"\n')
        (commands / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
    script = ""
    for kind, text, reason in blocks(page):
        if reason is not None:
            continue
        if kind == "sh":
            subprocess.run(["sh", "-e", "-c", text], check=True, env=environment)
        elif kind == "python":
            script += text
    if script:
        (desk / "blocks.py").write_text(script)
        subprocess.run([sys.executable, "blocks.py"], check=True, env=environment)


def pages_with_links():
    return ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", pages_with_links())
def test_links_lead_somewhere(page):
    """The site's build follows links between pages and their anchors; this also sees README and the pages as they lie."""
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"", text)
    local = [link for pair in links for link in pair if link and not re.match(r"https?:|#", link)]
    missing = [link for link in local if not (ROOT / page).parent.joinpath(link.partition("#")[0]).exists()]
    assert missing == [] and (local or page != "README.md")
