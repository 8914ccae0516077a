"""Training loops that are not Spillway's own, over its runs: transformers' Trainer, TRL's trainers, those of Axolotl
and LLaMA-Factory, and `own_loop`, the `spillway.Session` of a loop that somebody writes."""
