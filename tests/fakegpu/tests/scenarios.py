"""Runs the training scenarios named in the arguments as they are, but without cuDNN, which the fake GPU lacks."""

import os
import runpy
import sys

import torch

torch.backends.cudnn.enabled = False
folder = os.environ["MEMCTL_WORKLOADS"]
sys.path.insert(0, folder)
sys.argv[0] = os.path.join(folder, "scenarios.py")
runpy.run_path(sys.argv[0], run_name="__main__")
