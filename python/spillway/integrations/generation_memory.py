"""The words about GRPOTrainer in refusals of its generation."""

from spillway.integrations.server import ENGINES
from spillway.run.generation_memory import Advice

NAME = "GRPOTrainer"
ON_SERVER = 'name the server that samples: load(..., generation=Server("http://localhost:8000"))'
ON_HOST = 'sample on the CPUs: load(..., generation="cpu")'
RECORDED = "sample with another program, and train on the record with `objective: grpo` of `spillway train`"
ADVICE = Advice(NAME, RECORDED, ON_HOST, f"{ON_SERVER}; {ENGINES}")
