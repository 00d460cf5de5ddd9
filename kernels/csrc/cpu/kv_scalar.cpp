// The key/value kernels in portable C++: what every CPU can run.

#include "kv_codes.h"

namespace edge_vl {
namespace {

struct Scalar {
    static constexpr int kLanes = 4, kTileRows = 2, kTileVectors = 4;
    static constexpr bool kMultipliesCodes = false;
    struct F {
        float lanes[kLanes];
    };

    template <class Make>
    static EDGE_VL_INLINE F make(Make lane) {
        F result;
        for (int at = 0; at < kLanes; ++at) {
            result.lanes[at] = lane(at);
        }
        return result;
    }

    static F zero() { return broadcast(0.0f); }
    static F broadcast(float value) {
        return make([=](int) { return value; });
    }
    static F load(const float *from) {
        return make([=](int at) { return from[at]; });
    }
    static F load_f16(const uint16_t *from) {
        return make([=](int at) { return float_of_half(from[at]); });
    }
    static F load_i8(const int8_t *from) {
        return make([=](int at) { return static_cast<float>(from[at]); });
    }
    static F load_u4(const uint8_t *from, int shift) {
        return make([=](int at) { return static_cast<float>(from[at] >> shift & 15); });
    }
    static void store(float *to, F x) { memcpy(to, x.lanes, sizeof(x.lanes)); }
    static void store_f16(uint16_t *to, F x) {
        for (int at = 0; at < kLanes; ++at) {
            to[at] = half_of_float(x.lanes[at]);
        }
    }
    static void store_i8(int8_t *to, F x) {
        for (int at = 0; at < kLanes; ++at) {
            to[at] = static_cast<int8_t>(x.lanes[at]);
        }
    }

    static F add(F x, F y) {
        return make([=](int at) { return x.lanes[at] + y.lanes[at]; });
    }
    static F sub(F x, F y) {
        return make([=](int at) { return x.lanes[at] - y.lanes[at]; });
    }
    static F mul(F x, F y) {
        return make([=](int at) { return x.lanes[at] * y.lanes[at]; });
    }
    static F div(F x, F y) {
        return make([=](int at) { return x.lanes[at] / y.lanes[at]; });
    }
    static F max(F x, F y) {
        return make([=](int at) { return x.lanes[at] > y.lanes[at] ? x.lanes[at] : y.lanes[at]; });
    }
    static F min(F x, F y) {
        return make([=](int at) { return x.lanes[at] < y.lanes[at] ? x.lanes[at] : y.lanes[at]; });
    }
    // Not fused: that would be a call where the CPU has no such instruction.
    static F fma(F x, F y, F z) {
        return make([=](int at) { return x.lanes[at] * y.lanes[at] + z.lanes[at]; });
    }
    // Adding 1.5 2^23 rounds at the last integral place; larger numbers are integers.
    static F round(F x) {
        constexpr float kMagic = 12582912.0f;
        return make([=](int at) {
            const float value = x.lanes[at];
            const bool is_small = value < 4194304.0f && value > -4194304.0f;
            return is_small ? (value + kMagic) - kMagic : value;
        });
    }
    static F limit_exponent(F x) { return max(x, broadcast(-127.0f)); }
    static F scale(F x, F exponent) {
        return make([=](int at) {
            const int biased = static_cast<int>(exponent.lanes[at]) + 127;
            return x.lanes[at] * float_of_bits(static_cast<uint32_t>(biased) << 23);
        });
    }
    static F keep_first(F x, int count, F other) {
        return make([=](int at) { return at < count ? x.lanes[at] : other.lanes[at]; });
    }
    static bool any_greater(F x, F y) {
        bool is_any = false;
        for (int at = 0; at < kLanes; ++at) {
            is_any |= x.lanes[at] > y.lanes[at];
        }
        return is_any;
    }
    static float reduce_max(F x) {
        float largest = x.lanes[0];
        for (int at = 1; at < kLanes; ++at) {
            largest = x.lanes[at] > largest ? x.lanes[at] : largest;
        }
        return largest;
    }
    static float reduce_add(F x) { return (x.lanes[0] + x.lanes[1]) + (x.lanes[2] + x.lanes[3]); }
};

}  // namespace

extern const KvTable kKvScalar = make_table<Scalar>();

}  // namespace edge_vl
