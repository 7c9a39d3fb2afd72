"""The kernels' front door: checks the arguments, and sends each call to what serves their device.

Layout of every ragged argument of verification: sequence b of B owns rows ``cu[b] .. cu[b+1] - 1`` of the target's
logits, its depth plus one. Row ``cu[b] + j`` scores draft j; the last row is the bonus row. Drafts are packed without
padding, so draft j of sequence b is ``draft[cu[b] - b + j]``. A draft id outside the vocabulary (-1, say) is
never accepted.

Tokens that may not be emitted (end of text before ``min_tokens``) are the caller's to mask: set their logits to
minus infinity in place, in every row whose output position is too early. NaN counts as minus infinity, and a
row with nothing else yields token 0.

GPUs run the Triton kernels, where Triton is installed, and else the torch references. On CPU each call goes to what
was measured to be fastest: verification to numba, allocation to the core's numpy, attention to torch's fused
attention, sequence by sequence. Survival and sums of acceptance are the torch definitions there: on CPU the controller
works them out itself. :mod:`adaptive_spec.kernels.backend` overrides the
choice. numba and Triton are imported at the first call that needs them.

Arguments are checked before anything is launched. On a GPU the check of *values* (offsets that do not rise) makes the
host wait; within :func:`adaptive_spec.kernels.backend.trusted`, and while a CUDA graph is captured, only shapes, types
and devices are looked at.
"""

from adaptive_spec.kernels.attention_ops import verify_attention, write_kv
from adaptive_spec.kernels.depth_ops import accept_stats, allocate, survival
from adaptive_spec.kernels.rotary_ops import rotate
from adaptive_spec.kernels.verification_ops import verify_greedy, verify_match, verify_ratio

__all__ = [
    "accept_stats",
    "allocate",
    "rotate",
    "survival",
    "verify_attention",
    "verify_greedy",
    "verify_match",
    "verify_ratio",
    "write_kv",
]
