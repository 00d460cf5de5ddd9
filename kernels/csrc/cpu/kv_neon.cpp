// The key/value kernels for AArch64: what each of those CPUs has.

#include <arm_neon.h>

#include "kv_codes.h"

namespace edge_vl {
namespace {

struct Neon {
    static constexpr int kLanes = 4, kTileRows = 6, kTileVectors = 4;
    static constexpr bool kMultipliesCodes = false;
    using F = float32x4_t;

    static F zero() { return vdupq_n_f32(0.0f); }
    static F broadcast(float value) { return vdupq_n_f32(value); }
    static F load(const float *from) { return vld1q_f32(from); }
    static F load_f16(const uint16_t *from) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from))); }
    static uint8x8_t load_4_bytes(const void *from) {
        uint32_t bytes;
        memcpy(&bytes, from, sizeof(bytes));
        return vreinterpret_u8_u32(vdup_n_u32(bytes));
    }
    static F load_i8(const int8_t *from) {
        const int16x8_t words = vmovl_s8(vreinterpret_s8_u8(load_4_bytes(from)));
        return vcvtq_f32_s32(vmovl_s16(vget_low_s16(words)));
    }
    static F load_u4(const uint8_t *from, int shift) {
        const uint8x8_t shifted = vshl_u8(load_4_bytes(from), vdup_n_s8(static_cast<int8_t>(-shift)));
        const uint16x8_t words = vmovl_u8(vand_u8(shifted, vdup_n_u8(15)));
        return vcvtq_f32_u32(vmovl_u16(vget_low_u16(words)));
    }
    static void store(float *to, F x) { vst1q_f32(to, x); }
    static void store_f16(uint16_t *to, F x) { vst1_u16(to, vreinterpret_u16_f16(vcvt_f16_f32(x))); }
    static void store_i8(int8_t *to, F x) {
        const int16x4_t words = vmovn_s32(vcvtnq_s32_f32(x));
        const int8x8_t bytes = vmovn_s16(vcombine_s16(words, words));
        const uint32_t four = vget_lane_u32(vreinterpret_u32_s8(bytes), 0);
        memcpy(to, &four, sizeof(four));
    }

    static F add(F x, F y) { return vaddq_f32(x, y); }
    static F sub(F x, F y) { return vsubq_f32(x, y); }
    static F mul(F x, F y) { return vmulq_f32(x, y); }
    static F div(F x, F y) { return vdivq_f32(x, y); }
    static F max(F x, F y) { return vmaxq_f32(x, y); }
    static F min(F x, F y) { return vminq_f32(x, y); }
    static F fma(F x, F y, F z) { return vfmaq_f32(z, x, y); }
    static F round(F x) { return vrndnq_f32(x); }
    static F limit_exponent(F x) { return vmaxq_f32(x, broadcast(-127.0f)); }
    static F scale(F x, F exponent) {
        const int32x4_t biased = vaddq_s32(vcvtnq_s32_f32(exponent), vdupq_n_s32(127));
        return vmulq_f32(x, vreinterpretq_f32_s32(vshlq_n_s32(biased, 23)));
    }
    static F keep_first(F x, int count, F other) {
        const int32_t numbers[kLanes] = {0, 1, 2, 3};
        return vbslq_f32(vcltq_s32(vld1q_s32(numbers), vdupq_n_s32(count)), x, other);
    }
    static bool any_greater(F x, F y) { return vmaxvq_u32(vcgtq_f32(x, y)) != 0; }
    static float reduce_max(F x) { return vmaxvq_f32(x); }
    static float reduce_add(F x) { return vaddvq_f32(x); }
};

}  // namespace

extern const KvTable kKvNeon = make_table<Neon>();

}  // namespace edge_vl
