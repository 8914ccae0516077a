"""Writes adamw_golden.inc: what torch.optim.AdamW(fused=True) makes of 100 steps, as bit patterns.

Run where PyTorch has AVX2 or AVX-512: python tests/kernels/make_adamw_golden.py
The start, the gradients and the settings are those of adamw_golden_test.cc, element by element.
"""

from pathlib import Path

import numpy as np
import torch

N, STEPS, KEPT = 64, 100, (1, 2, 10, 100)
# weight decay, gradient scale, beta1, beta2, epsilon
CASES = [
    (0.0, 1.0, 0.9, 0.999, 1e-8),
    (0.1, 1.0, 0.9, 0.999, 1e-8),
    (0.1, 0.37, 0.9, 0.95, 1e-6),
    (0.01, 0.37, 0.4, 0.99, 1e-8),  # beta1 below a half: the other side of PyTorch's lerp
]


def mix(x: np.ndarray) -> np.ndarray:
    """A 32-bit integer hash; the test has the same."""
    x = x.astype(np.uint32)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    return x ^ (x >> np.uint32(16))


def master() -> np.ndarray:
    """fp32 weights of magnitude 2^-11 to 2^4, every bit of the fraction in use."""
    h = mix(np.arange(N) + 1)
    return (
        (h & np.uint32(0x807FFFFF))
        | ((np.uint32(116) + (h >> np.uint32(27))) % np.uint32(16) + np.uint32(116)) << np.uint32(23)
    ).view(np.float32)


def gradient(step: int) -> np.ndarray:
    """bf16 gradients of magnitude 2^-23 to 2^8, one of eight zero."""
    h = mix(np.arange(N) + 1000 * step)
    bits = (h & np.uint32(0x807F)) | ((np.uint32(104) + (h >> np.uint32(27))) << np.uint32(7))
    bits = np.where((h >> np.uint32(20)) & np.uint32(7) == 0, np.uint32(0), bits)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def run(case: tuple[float, ...]) -> list[np.ndarray]:
    decay, scale, beta1, beta2, epsilon = case
    weight = torch.nn.Parameter(torch.from_numpy(master().copy()))
    optimizer = torch.optim.AdamW([weight], betas=(beta1, beta2), eps=epsilon, weight_decay=decay, fused=True)
    kept = []
    for step in range(1, STEPS + 1):
        optimizer.param_groups[0]["lr"] = step * 1e-4
        weight.grad = torch.from_numpy(gradient(step).copy()) * scale
        optimizer.step()
        if step in KEPT:
            state = optimizer.state[weight]
            kept += [t.detach().numpy().view(np.uint32).copy() for t in (weight, state["exp_avg"], state["exp_avg_sq"])]
    return kept


def main() -> None:
    torch.set_num_threads(1)
    lines = [
        f"// Written by make_adamw_golden.py with PyTorch {torch.__version__}: by case, after step 1, 2, 10 and 100,",
        f"// {N} weights, {N} exp_avg, {N} exp_avg_sq.",
    ]
    for case in CASES:
        for words in run(case):
            for row in words.reshape(-1, 8):
                lines.append(" ".join(f"0x{int(w):08x}," for w in row))
    Path(__file__).with_name("adamw_golden.inc").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
