// C ABI of the kernels library. Plain C types only, so that any language can load it.
//
// Every size, stride and pointer is checked by the caller (kernels/edge_vl_kernels/); nothing here is checked again.
// Functions start no threads, allocate nothing, keep no state and may be called from any number of threads at once.

#pragma once

#include <stdint.h>

#if defined(_WIN32)
#define EDGE_VL_KERNELS_API __declspec(dllexport)
#else
#define EDGE_VL_KERNELS_API __attribute__((visibility("default")))
#endif

// Raised whenever a function below changes its arguments or meaning, or is removed.
// kernels/edge_vl_kernels/library.py holds the number that it was written for.
#define EDGE_VL_KERNELS_ABI_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

EDGE_VL_KERNELS_API int32_t edge_vl_kernels_abi_version(void);

// Look every pixel value up in its channel's table and write the channels apart.
//
//   pixels    uint8 (height, width, 3), any byte strides, negative ones too
//   table     float32 (3, 256), contiguous
//   out       float32 (3, height, width), contiguous; overlaps neither input
EDGE_VL_KERNELS_API void edge_vl_kernels_normalize_tile(const uint8_t *pixels, int64_t height, int64_t width,
                                                        int64_t row_stride, int64_t column_stride,
                                                        int64_t channel_stride, const float *table, float *out);

#ifdef __cplusplus
}
#endif
