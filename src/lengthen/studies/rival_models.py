"""The models of the study `rivals`: bases of which each is pre-trained once a seed, and two arms of post-training."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from safetensors.torch import load_model
from torch import nn

from lengthen.errors import RunError
from lengthen.results import Result
from lengthen.studies.cells import keep_weights, post_trained
from lengthen.studies.settings import SLOW, Base, Setting
from lengthen.training import Mamba2Recipe

BASES = {
    "slow": Base(),
    "mild": Base(replace(SLOW, decay_range=(0.005, 0.1))),
    "stock": Base(Mamba2Recipe()),
}
"""Label -> base: decays that start slow, less slow, and as the library draws them."""


@dataclass(frozen=True)
class TrainedArm(Result):
    """What an arm's post-training took: tokens read, optimiser steps, seconds of CPU time."""

    tokens: int
    steps: int
    seconds: float


def train_arm(setting: Setting, seed: int, folder: Path) -> None:
    """Post-trains a copy of the base that lies in the folder, and writes its weights and what it took beside it."""
    began = time.process_time()
    model = base_model(setting.base, seed, folder)
    failed = post_trained(model, setting, seed)
    if failed is not None:
        raise RunError(failed)
    tokens = setting.steps * setting.base.rows * setting.base.train_context
    keep_weights(model, weights_of(setting, seed, folder))
    TrainedArm(tokens, setting.steps, time.process_time() - began).save(took_of(setting, seed, folder))


def base_model(base: Base, seed: int, folder: Path) -> nn.Module:
    """The pre-trained model that lies in the folder."""
    model = base.recipe.build(seed)
    load_model(model, str(folder / f"{base.key(seed)}.safetensors"))
    return model


def arm_model(setting: Setting, seed: int, folder: Path) -> nn.Module:
    """The post-trained model that lies in the folder."""
    model = setting.base.recipe.build(seed)
    load_model(model, str(weights_of(setting, seed, folder)))
    return model


def weights_of(setting: Setting, seed: int, folder: Path) -> Path:
    """The file of an arm's weights."""
    return folder / f"{setting.key(seed)}.safetensors"


def took_of(setting: Setting, seed: int, folder: Path) -> Path:
    """The file that says what an arm's post-training took."""
    return folder / f"trained-{setting.key(seed)}.json"
