"""Training loops that are not Spillway's own, over its runs: transformers' Trainer, TRL's trainers, and `own_loop`, the
`spillway.Session` of a loop that somebody writes."""
