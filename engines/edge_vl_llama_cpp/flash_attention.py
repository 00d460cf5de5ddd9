"""Whether a device runs flash attention on a KV cache of given types: asked of the backend before a context is made.

With quantised values llama.cpp takes flash attention for granted. Where the device's backend has no kernel for them,
the work goes to the CPU without a word, or the process is aborted when the first rows are written into the cache.
"""

from __future__ import annotations

import ctypes
from typing import Any

from edge_vl.errors import RequestError
from edge_vl.kv_policy import KVPrecision
from edge_vl_llama_cpp.files import GGUFFile
from edge_vl_llama_cpp.kv_types import KV_TYPES, head_widths
from edge_vl_llama_cpp.library import ENGINE, Device, Library

__all__ = ["check_flash_attention", "runs_flash_attention"]

_F32, _F16, _I64 = 0, 1, 27  # ggml_type
_CPU = 0  # ggml_backend_dev_type
_CELLS = 256  # the least entries of a cache
_ROWS = (1, 64)  # of a pass: one token, and a chunk of a prompt
_TENSORS = 64  # more than are made; a context that is full would abort


class _InitParams(ctypes.Structure):
    """ggml_init_params."""

    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


def check_flash_attention(library: Library, device: Device, file: GGUFFile, precision: KVPrecision) -> None:
    """Refuse a KV cache that needs flash attention where the device does not run it.

    Args:
        library: the library.
        device: where the cache will be.
        file: the text model.
        precision: of the cache.

    Raises:
        RequestError: the device does not run it.
    """
    keys, values = KV_TYPES[precision.keys], KV_TYPES[precision.values]
    widths = head_widths(file)
    num_kv_heads = file.number("attention.head_count_kv") or file.number("attention.head_count") or 1
    group = max(1, file.number("attention.head_count") // num_kv_heads)
    if not all(widths) or runs_flash_attention(
        library, device, (keys.number, values.number), widths, (group * num_kv_heads, num_kv_heads)
    ):
        return  # what a file does not say, llama.cpp itself refuses
    raise RequestError(
        f"a KV cache in {precision.name} needs flash attention, and engine {ENGINE!r} does not have it on "
        f"{device.name} for keys in {keys.name}, values in {values.name} and heads of {widths[0]}; use f16, or "
        f"{KVPrecision(precision.keys, 'f16').name}, which needs none",
        field="kv",
    )


def runs_flash_attention(
    library: Library, device: Device, types: tuple[int, int], widths: tuple[int, int], num_heads: tuple[int, int]
) -> bool:
    """Ask a device's backend for everything that attention over a cache takes; nothing is computed.

    Args:
        library: the library.
        device: the device.
        types: ggml's numbers of the types of keys and values, whose blocks divide the widths.
        widths: of a head's keys and values, at least 1.
        num_heads: query heads and KV heads; the first a multiple of the second.
    """
    ggml = _declared(library.ggml)
    pointer = device.pointer or ggml.ggml_backend_dev_by_type(_CPU)
    context = ggml.ggml_init(_InitParams(_TENSORS * ggml.ggml_tensor_overhead(), None, True))
    if not context:
        return False
    try:
        return all(
            ggml.ggml_backend_dev_supports_op(pointer, operation)
            for rows in _ROWS
            for operation in _operations(ggml, context, rows, types, widths, num_heads)
        )
    finally:
        ggml.ggml_free(context)


def _operations(
    ggml: Any, context: Any, rows: int, types: tuple[int, int], widths: tuple[int, int], num_heads: tuple[int, int]
) -> list[Any]:
    """Return the nodes of a graph: rows are written into the cache, and attention reads it."""

    def tensor(kind: int, *shape: int) -> Any:
        return ggml.ggml_new_tensor_4d(context, kind, *shape, *(1 for _ in range(4 - len(shape))))

    heads, kv_heads = num_heads
    written, read = [], []
    for kind, width in zip(types, widths, strict=True):
        flat = tensor(kind, width * kv_heads, _CELLS)
        written.append(ggml.ggml_set_rows(context, flat, tensor(_F32, width * kv_heads, rows), tensor(_I64, rows)))
        read.append(ggml.ggml_permute(context, tensor(kind, width, kv_heads, _CELLS), 0, 2, 1, 3))
    queries = ggml.ggml_permute(context, tensor(_F32, widths[0], heads, rows), 0, 2, 1, 3)
    mask = tensor(_F16, _CELLS, rows)
    attended = ggml.ggml_flash_attn_ext(context, queries, *read, mask, widths[0] ** -0.5, 0.0, 0.0)
    return [*written, attended]


def _declared(ggml: Any) -> Any:
    """Declare the functions that are called."""
    tensor = context = ctypes.c_void_p
    for name, result, arguments in (
        ("ggml_tensor_overhead", ctypes.c_size_t, []),
        ("ggml_init", context, [_InitParams]),
        ("ggml_free", None, [context]),
        ("ggml_new_tensor_4d", tensor, [context, ctypes.c_int, *[ctypes.c_int64] * 4]),
        ("ggml_set_rows", tensor, [context, tensor, tensor, tensor]),
        ("ggml_permute", tensor, [context, tensor, *[ctypes.c_int] * 4]),
        ("ggml_flash_attn_ext", tensor, [context, *[tensor] * 4, *[ctypes.c_float] * 3]),
        ("ggml_backend_dev_by_type", ctypes.c_void_p, [ctypes.c_int]),
        ("ggml_backend_dev_supports_op", ctypes.c_bool, [ctypes.c_void_p, tensor]),
    ):
        function = getattr(ggml, name)
        function.restype, function.argtypes = result, arguments
    return ggml
