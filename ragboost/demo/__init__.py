"""The main job from end to end on this machine: real text, real servers, plain beside boosted."""

from ragboost.demo.run import run_demo

__all__ = ["run_demo"]
