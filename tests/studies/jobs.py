"""Jobs for other processes, in a module of their own that is quick to import."""

import os
import time

import torch


def write(path, text):
    path.write_text(f"{text} {os.getpid()} {torch.get_num_threads()}")


def write_late(path):
    time.sleep(0.2)
    path.touch()


def fail(path):
    raise ValueError(f"{path.name} failed")
