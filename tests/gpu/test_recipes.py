"""The recipes for GPUs: their options are the command's, and a step is half a million tokens."""

import json
import subprocess
from pathlib import Path

import pytest

from lengthen.cli import main
from tests.conftest import tiny_mamba2

RECIPES = Path(__file__).parents[2] / "examples" / "gpu"


@pytest.mark.parametrize("recipe", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_recipe_is_planned_as_it_says(recipe, tmp_path, capsys):
    tiny_mamba2().save_pretrained(tmp_path / "model")
    options = ["--config", str(recipe), "--data", "train.jsonl", "--processes", "8", "--dry-run", "--json"]
    with pytest.raises(SystemExit) as exit_:
        main(["post-train", str(tmp_path / "model"), *options])
    captured = capsys.readouterr()
    assert exit_.value.code == 0, captured.err
    plan = json.loads(captured.out)
    assert plan["tokens_a_step"] == 2**19
    assert plan["tokens"] == 2**19 * (1000 if recipe.stem == "mamba1-130m" else 500)


def test_the_script_is_whole():
    assert subprocess.run(["bash", "-n", str(RECIPES / "repair.sh")]).returncode == 0
