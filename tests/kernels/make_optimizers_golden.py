"""Writes optimizers_golden.inc: what PyTorch makes of 100 steps of Adam, SGD and Lion, as bit patterns.

Run where PyTorch has AVX2 or AVX-512: python tests/kernels/make_optimizers_golden.py
The start, the gradients and the settings are those of optimizers_golden_test.cc, element by element. Adam and SGD are
torch.optim's with fused=True; Lion is the loop of its authors (google/automl, lion/lion_pytorch.py).
"""

from pathlib import Path

import numpy as np
import torch
from make_adamw_golden import gradient, master

STEPS, KEPT = 100, (1, 2, 100)
# optimizer, weight decay, gradient scale, beta1, beta2
CASES = [
    ("adam", 0.0, 1.0, 0.9, 0.999),
    ("adam", 0.1, 0.37, 0.9, 0.95),
    ("lion", 0.0, 1.0, 0.9, 0.99),
    ("lion", 0.1, 0.37, 0.95, 0.98),
    ("sgd", 0.0, 1.0, 0.9, 0.0),
    ("sgd", 0.1, 0.37, 0.5, 0.0),
]


class Lion(torch.optim.Optimizer):
    def __init__(self, params: list, lr: float, betas: tuple[float, float], weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                p.data.mul_(1 - group["lr"] * group["weight_decay"])
                state = self.state[p]
                exp_avg = state.setdefault("exp_avg", torch.zeros_like(p))
                update = exp_avg * beta1 + p.grad * (1 - beta1)
                p.add_(update.sign_(), alpha=-group["lr"])
                exp_avg.mul_(beta2).add_(p.grad, alpha=1 - beta2)


def make(name: str, weight: torch.nn.Parameter, decay: float, beta1: float, beta2: float) -> torch.optim.Optimizer:
    if name == "adam":
        return torch.optim.Adam([weight], betas=(beta1, beta2), weight_decay=decay, fused=True)
    if name == "sgd":
        return torch.optim.SGD([weight], momentum=beta1, weight_decay=decay, fused=True)
    return Lion([weight], 1e-4, (beta1, beta2), decay)


def run(case: tuple) -> list[np.ndarray]:
    name, decay, scale, beta1, beta2 = case
    weight = torch.nn.Parameter(torch.from_numpy(master().copy()))
    optimizer = make(name, weight, decay, beta1, beta2)
    kept = []
    for step in range(1, STEPS + 1):
        optimizer.param_groups[0]["lr"] = step * 1e-4
        weight.grad = torch.from_numpy(gradient(step).copy()) * scale
        optimizer.step()
        if step in KEPT:
            fields = [weight, optimizer.state[weight]["momentum_buffer" if name == "sgd" else "exp_avg"]]
            kept += [t.detach().numpy().view(np.uint32).copy() for t in fields]
    return kept


def main() -> None:
    torch.set_num_threads(1)
    lines = [
        f"// Written by make_optimizers_golden.py with PyTorch {torch.__version__}: by case, after step 1, 2 and 100,"
    ]
    lines.append("// the weights and the first moments.")
    for case in CASES:
        for words in run(case):
            lines += [" ".join(f"0x{int(w):08x}," for w in row) for row in words.reshape(-1, 8)]
    Path(__file__).with_name("optimizers_golden.inc").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
