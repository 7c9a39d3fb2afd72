"""CapturedPass: the model's layers over one bucket of rows, at fixed addresses, run by replaying a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import proxy

import torch
from torch import Tensor

from adaptive_spec.engine.buckets import Bucket
from adaptive_spec.engine.kv_cache import KVCache
from adaptive_spec.engine.model import Model
from adaptive_spec.engine.packed_batch import PackedBatch
from adaptive_spec.engine.pass_inputs import PassInputs
from adaptive_spec.kernels import backend

WARM_UPS = 2  # the first compiles kernels and chooses matrix products, the second settles their workspaces


class GraphPlace(NamedTuple):
    """Where graphs are captured: those that name the same pool and the same stream share their memory.

    Attributes
    ----------
    pool : handle
        Of the private memory.
    stream : torch.cuda.Stream
        A stream of its own: torch gives memory back within the stream that it was asked for in.
    """

    pool: Any
    stream: Any

    @classmethod
    def of(cls, device: torch.device) -> GraphPlace | None:
        """Make one; None where there is no CUDA."""
        if device.type != "cuda":
            return None
        return cls(torch.cuda.graph_pool_handle(), torch.cuda.Stream(device))  # type: ignore[no-untyped-call]


class CapturedPass:
    """One pass whose shapes are its bucket's, whatever it holds: what it lacks is filled up with inert rows.

    An inert row belongs to no sequence: its key and value go nowhere, nothing attends to it, and nobody asks for its
    logits. Sequences that the bucket has too many have no rows. Where there is no CUDA the same call runs uncaptured.

    Parameters
    ----------
    model : Model
    cache : KVCache
        The graph holds its addresses, and those of the inputs.
    inputs : PassInputs
    bucket : Bucket
    max_width : int, optional
        Rows that a decoding sequence can have; wider ones (prefill chunks) are computed as well, in more programs.
    place : GraphPlace, optional
        That of all graphs over one cache; None where there is no CUDA.
    """

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        inputs: PassInputs,
        bucket: Bucket,
        max_width: int | None,
        place: GraphPlace | None = None,
    ) -> None:
        self.bucket = bucket
        self._inputs = inputs
        self._device = model.device
        self._hidden: Tensor
        self._replay = self._capture(model, cache, max_width, place)

    def run(self, batch: PackedBatch) -> Tensor:
        """Run the layers over a batch that lies on the host and fits the bucket.

        Returns
        -------
        Tensor, shape (R, hidden_size)
            The rows of ``batch.logit_rows``, on the device; not waited for.
        """
        wanted = self._inputs.fill(self.bucket, batch)
        self._replay()
        return self._hidden.index_select(0, wanted)

    def _capture(
        self, model: Model, cache: KVCache, max_width: int | None, place: GraphPlace | None
    ) -> Callable[[], object]:
        """Return what runs the layers over the inputs as they are then, and leaves its result in ``_hidden``."""
        batch = self._inputs.batch(self.bucket, max_width)

        def compute() -> None:
            with backend.inert_rows():
                self._hidden = model.hidden(batch, cache)

        if place is None:
            return compute
        self._inputs.clear(self.bucket)  # so that the runs before the capture write nothing into the cache
        place.stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(place.stream):
            for _ in range(WARM_UPS):
                compute()
        torch.cuda.current_stream(self._device).wait_stream(place.stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=place.pool, stream=place.stream):
            compute()
        return graph.replay


class CapturedPasses:
    """All captured passes over one KV cache; they share their inputs and the memory between.

    Parameters
    ----------
    model : Model
    cache : KVCache
        Held weakly, since it keeps them: with it goes all that was captured.
    largest : Bucket
    blocks : int
        Blocks that a sequence can have.
    """

    def __init__(self, model: Model, cache: KVCache, largest: Bucket, blocks: int) -> None:
        self.model = model
        self._cache: KVCache = proxy(cache)
        self.inputs = PassInputs(model.device, largest, blocks)
        self._place = GraphPlace.of(model.device)
        self._passes: dict[tuple[Bucket, int | None], CapturedPass] = {}

    def __len__(self) -> int:
        return len(self._passes)

    def find(self, bucket: Bucket, max_width: int | None) -> CapturedPass | None:
        """The pass of a bucket, or of one for more sequences; None if none was captured."""
        # A chunk of a prompt may leave a pass with fewer sequences than decoding ones of its size have.
        found = (self._passes.get((larger, max_width)) for larger in bucket.with_more_sequences())
        return next((one for one in found if one is not None), None)

    def capture(self, bucket: Bucket, max_width: int | None) -> CapturedPass:
        """The pass of this very bucket, captured now if it wasn't before."""
        key = (bucket, max_width)
        if key not in self._passes:
            self._passes[key] = CapturedPass(self.model, self._cache, self.inputs, bucket, max_width, self._place)
        return self._passes[key]
