// Kernels in portable C++: what every CPU can run.

#include "../edge_vl_kernels.h"

namespace {

// The strides are template arguments where they are known: the compiler then addresses each load with constants.
template <int64_t kColumnStride, int64_t kChannelStride>
void normalize_row(const uint8_t *row, int64_t width, int64_t column_stride, int64_t channel_stride,
                   const float *table, float *red, float *green, float *blue) {
    const int64_t column_step = kColumnStride ? kColumnStride : column_stride;
    const int64_t channel_step = kChannelStride ? kChannelStride : channel_stride;
    for (int64_t column = 0; column < width; ++column) {
        const uint8_t *pixel = row + column * column_step;
        red[column] = table[pixel[0]];
        green[column] = table[256 + pixel[channel_step]];
        blue[column] = table[512 + pixel[2 * channel_step]];
    }
}

}  // namespace

extern "C" {

int32_t edge_vl_kernels_abi_version(void) { return EDGE_VL_KERNELS_ABI_VERSION; }

void edge_vl_kernels_normalize_tile(const uint8_t *pixels, int64_t height, int64_t width, int64_t row_stride,
                                    int64_t column_stride, int64_t channel_stride, const float *table, float *out) {
    const bool is_packed_rgb = column_stride == 3 && channel_stride == 1;
    const auto normalize = is_packed_rgb ? normalize_row<3, 1> : normalize_row<0, 0>;
    const int64_t plane = height * width;
    for (int64_t row = 0; row < height; ++row) {
        float *red = out + row * width;
        normalize(pixels + row * row_stride, width, column_stride, channel_stride, table, red, red + plane,
                  red + 2 * plane);
    }
}

}  // extern "C"
