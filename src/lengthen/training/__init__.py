"""Pre- and post-training from initial states, on transformers' Trainer."""

from lengthen.training.any_trainer import InitialStates
from lengthen.training.planning import TrainingPlan, plan
from lengthen.training.post_training import AUTO_STEPS, post_train
from lengthen.training.pre_training import Mamba2Recipe, pretrain
from lengthen.training.running import Optimisation, run_training
from lengthen.training.trainer import StateTrainer
from lengthen.training.watching import StreamedLoss, Watch

__all__ = [
    "AUTO_STEPS",
    "InitialStates",
    "Mamba2Recipe",
    "Optimisation",
    "StateTrainer",
    "StreamedLoss",
    "TrainingPlan",
    "Watch",
    "plan",
    "post_train",
    "pretrain",
    "run_training",
]
