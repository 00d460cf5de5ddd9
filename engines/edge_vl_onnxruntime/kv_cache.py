"""KV caches of the whole-graph decoder: one that grows with every run, one that is written in place."""

from __future__ import annotations

import weakref
from typing import Any, Protocol, Self

import numpy as np

from edge_vl.engine import KVCache
from edge_vl.errors import EngineFault
from edge_vl_onnxruntime.decoder_graph import DecoderGraph
from edge_vl_onnxruntime.session import ENGINE, Session, import_onnxruntime

__all__ = ["BoundKVCache", "GrowingKVCache", "SharedKVCache", "shared_capacity"]

_MIN_CAPACITY = 64


class BoundKVCache(KVCache, Protocol):
    """A cache that binds itself to the decoder's cache inputs and outputs."""

    @property
    def owner(self) -> object:
        """The session that it belongs to."""
        ...

    @property
    def is_open(self) -> bool:
        """Not closed yet."""
        ...

    @property
    def binding(self) -> Any:
        """The `onnxruntime.IOBinding`; logits are its first output."""
        ...

    def bind(self, num_new: int) -> None:
        """Bind for a run that appends `num_new` entries. Does not change what is stored."""
        ...

    def commit(self, num_new: int) -> None:
        """Take over the result of that run."""
        ...


class _Layout:
    """What both kinds of cache share: where they are and how wide."""

    def __init__(self, session: Session, graph: DecoderGraph, context_length: int) -> None:
        self.session = session
        self.graph = graph
        self.context_length = context_length
        self.device = "cuda" if session.device in {"cuda", "tensorrt"} else "cpu"
        self.make = import_onnxruntime().OrtValue.ortvalue_from_numpy

    def value(self, array: Any) -> Any:
        """Put an array where the session works; on the CPU the array itself stays in use."""
        return self.make(array, self.device)

    def empty(self, length: int) -> Any:
        """Return zeros, (1, num_kv_heads, length, head_dim)."""
        return np.zeros((1, self.graph.num_kv_heads, length, self.graph.head_dim), self.graph.cache_dtype)


class _Cache:
    """What both kinds of cache are: values of one session, bound to its inputs and outputs."""

    def __init__(self, session: Session, graph: DecoderGraph, context_length: int) -> None:
        self._layout = _Layout(session, graph, context_length)
        self._values: list[Any] = []
        self._num_tokens = 0
        self._binding: Any = session.native.io_binding()

    @property
    def owner(self) -> object:
        """The session that it belongs to."""
        return self._layout.session

    @property
    def is_open(self) -> bool:
        """Not closed yet."""
        return self._binding is not None

    @property
    def binding(self) -> Any:
        """The `onnxruntime.IOBinding`; logits are its first output."""
        return self._binding

    @property
    def num_tokens(self) -> int:
        """Entries stored."""
        return self._num_tokens

    @property
    def next_position(self) -> int:
        """Position of the next token."""
        return self._num_tokens

    def _entry_bytes(self) -> int:
        """Memory of one entry, all layers together."""
        graph = self._layout.graph
        row_bytes = graph.num_kv_heads * graph.head_dim * np.dtype(graph.cache_dtype).itemsize
        return int(len(self._values) * row_bytes)

    def _checked_donor(self, donor: object, start: int, stop: int) -> Self:
        """Return a donor that has the entries `start` to `stop` and belongs to the same session.

        Raises:
            ValueError: it does not, or this cache does not end at `start`.
            EngineFault: this cache or the donor is closed.
        """
        if not isinstance(donor, type(self)) or donor.owner is not self.owner:
            raise ValueError("cannot graft: the donor belongs to another language model")
        if not self.is_open or not donor.is_open:
            raise EngineFault(ENGINE, "graft", "the cache is closed" if donor.is_open else "the donor is closed")
        if start != self._num_tokens or not start <= stop <= donor.num_tokens:
            raise ValueError(
                f"cannot graft entries {start} to {stop} of {donor.num_tokens} behind {self._num_tokens} entries"
            )
        return donor

    def close(self) -> None:
        """Give the memory back."""
        self._values, self._num_tokens, self._binding = [], 0, None


class GrowingKVCache(_Cache):
    """For plain attention: the graph returns a longer cache, which becomes the next run's input without a copy.

    The values are never written to, so forks share them.
    """

    def __init__(self, session: Session, graph: DecoderGraph, context_length: int) -> None:
        """Begin empty."""
        super().__init__(session, graph, context_length)
        self._values = [self._layout.value(self._layout.empty(0)) for _ in graph.past_names]

    @property
    def nbytes(self) -> int:
        """Memory of the entries; what forks share is counted in each."""
        return self._entry_bytes() * self._num_tokens

    def bind(self, num_new: int) -> None:
        """Bind the stored values as past, and let the backend allocate what follows."""
        binding, device = self._binding, self._layout.device
        for name, value in zip(self._layout.graph.past_names, self._values, strict=True):
            binding.bind_ortvalue_input(name, value)
        for name in self._layout.graph.present_names:
            binding.bind_output(name, device)

    def commit(self, num_new: int) -> None:
        """Keep the outputs.

        Raises:
            ValueError: they do not have the right length.
        """
        values = self._binding.get_outputs()[1:]
        num_tokens = self._num_tokens + num_new
        if values[0].shape()[2] != num_tokens:
            raise ValueError(f"the graph returned a cache of {values[0].shape()[2]} entries, not {num_tokens}")
        self._values = values
        self._num_tokens = num_tokens

    def fork(self) -> Self:
        """Return an independent cache with the same entries."""
        copy = type(self)(self._layout.session, self._layout.graph, self._layout.context_length)
        copy._values, copy._num_tokens = list(self._values), self._num_tokens
        return copy

    def trim(self, num_tokens: int) -> None:
        """Forget all but the first entries."""
        _check_trim(num_tokens, self._num_tokens)
        if num_tokens < self._num_tokens:
            kept = [np.ascontiguousarray(value.numpy()[:, :, :num_tokens]) for value in self._values]
            self._values = [self._layout.value(array) for array in kept]
            self._num_tokens = num_tokens
            self._release_binding()

    def graft(self, donor: KVCache, start: int, stop: int) -> None:
        """Append copies of a donor's entries; see `edge_vl.engine.Graftable`."""
        checked = self._checked_donor(donor, start, stop)
        if start < stop:
            joined = [
                np.concatenate([own.numpy(), other.numpy()[:, :, start:stop]], axis=2)
                for own, other in zip(self._values, checked._values, strict=True)
            ]
            self._values = [self._layout.value(array) for array in joined]
            self._num_tokens = stop
            self._release_binding()

    def _release_binding(self) -> None:
        """Drop the longer values that the binding still holds."""
        self._binding = self._layout.session.native.io_binding()


class SharedKVCache(_Cache):
    """For GroupQueryAttention: past and present are one buffer that the graph writes to in place.

    Forks share the buffers until one of them writes; that one moves to its own and takes along what it still has.
    """

    def __init__(self, session: Session, graph: DecoderGraph, context_length: int) -> None:
        """Begin empty."""
        super().__init__(session, graph, context_length)
        self._capacity = 0
        self._holders = weakref.WeakSet([self])  # of the buffers
        self._is_bound = False

    @property
    def nbytes(self) -> int:
        """Memory of the buffers, used or not; what forks share is counted in each."""
        return self._entry_bytes() * self._capacity

    def bind(self, num_new: int) -> None:
        """Make room and bind every buffer twice; nothing to do while the buffers stay."""
        self._reserve(self._num_tokens + num_new)
        if not self._is_bound:
            graph = self._layout.graph
            for past, present, value in zip(graph.past_names, graph.present_names, self._values, strict=True):
                self._binding.bind_ortvalue_input(past, value)
                self._binding.bind_ortvalue_output(present, value)
            self._is_bound = True

    def commit(self, num_new: int) -> None:
        """Count what the graph wrote; what lies behind it does not matter."""
        self._num_tokens += num_new

    def fork(self) -> Self:
        """Return an independent cache with the same entries."""
        copy = type(self)(self._layout.session, self._layout.graph, self._layout.context_length)
        copy._values, copy._num_tokens, copy._capacity = self._values, self._num_tokens, self._capacity
        copy._holders = self._holders
        self._holders.add(copy)
        return copy

    def trim(self, num_tokens: int) -> None:
        """Forget all but the first entries."""
        _check_trim(num_tokens, self._num_tokens)
        self._num_tokens = num_tokens

    def graft(self, donor: KVCache, start: int, stop: int) -> None:
        """Append copies of a donor's entries; see `edge_vl.engine.Graftable`."""
        checked = self._checked_donor(donor, start, stop)
        if start < stop:
            self._reserve(stop)
            for own, other in zip(self._values, checked._values, strict=True):
                array = own.numpy()  # on the CPU the buffer itself, elsewhere a copy
                array[:, :, start:stop] = other.numpy()[:, :, start:stop]
                if self._layout.device != "cpu":
                    own.update_inplace(array)
            self._num_tokens = stop

    def close(self) -> None:
        """Give the memory back."""
        super().close()
        self._capacity = 0
        self._holders.discard(self)

    def _reserve(self, num_tokens: int) -> None:
        """Have buffers of its own in which so many entries fit."""
        if num_tokens <= self._capacity and len(self._holders) == 1:
            return
        capacity = max(shared_capacity(num_tokens, self._layout.context_length), num_tokens)
        kept = slice(self._num_tokens)
        arrays = [self._layout.empty(capacity) for _ in self._layout.graph.past_names]
        for array, value in zip(arrays, self._values, strict=False):  # there are none yet in a new cache
            array[:, :, kept] = value.numpy()[:, :, kept]
        self._values = [self._layout.value(array) for array in arrays]
        self._capacity = capacity
        self._is_bound = False
        self._holders.discard(self)
        self._holders = weakref.WeakSet([self])


def shared_capacity(num_tokens: int, context_length: int) -> int:
    """Return the entries that a `SharedKVCache` reserves for so many: the next power of two, at most the context."""
    return min(max(_MIN_CAPACITY, 1 << max(0, num_tokens - 1).bit_length()), context_length)


def _check_trim(num_tokens: int, stored: int) -> None:
    if not 0 <= num_tokens <= stored:
        raise ValueError(f"cannot keep {num_tokens} of {stored} entries")
