"""Units that are right and slow, and others that are as fast as those that they would replace."""

from __future__ import annotations

from tests.agents.handwritten import RMSNORM, SWIGLU

SLOW_RMSNORM = RMSNORM.replace(
    "        power = torch.mean(x * x, dim=-1, keepdim=True)\n",
    "        power = torch.mean(x * x, dim=-1, keepdim=True)\n"
    "        for _ in range(_TIMES):\n"
    "            power = torch.mean(x * x, dim=-1, keepdim=True)\n",
).replace("class RMSNorm", "_TIMES = 40\n\n\nclass RMSNorm")

SAME_SWIGLU = (
    SWIGLU.replace("gate = both", "opened = both")
    .replace(".mul(gate)", ".mul(opened)")
    .replace("torch.sigmoid(gate)", "torch.sigmoid(opened)")
)
