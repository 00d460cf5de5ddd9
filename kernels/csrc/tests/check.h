// What the test driver's parts share: random numbers, failing, and taking memory and threads away from the library.

#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

// Say what does not hold, with numbers, and end.
#define CHECK(holds, ...)                                                    \
    do {                                                                     \
        if (!(holds)) {                                                      \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #holds);      \
            fprintf(stderr, __VA_ARGS__);                                    \
            fprintf(stderr, "\n");                                           \
            exit(1);                                                         \
        }                                                                    \
    } while (false)

namespace edge_vl_driver {

// Random numbers that are the same everywhere. Source: splitmix64, prng.di.unimi.it/splitmix64.c (public domain).
struct Random {
    uint64_t state;

    uint64_t next() {
        uint64_t value = state += 0x9e3779b97f4a7c15u;
        value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
        value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
        return value ^ (value >> 31);
    }
    // From `low` to `high`, both included.
    int64_t between(int64_t low, int64_t high) {
        return low + static_cast<int64_t>(next() % static_cast<uint64_t>(high - low + 1));
    }
    bool one_in(int64_t number) { return between(1, number) == 1; }
    // About normal: a sum of four uniform ones, mean 0, standard deviation 1.
    float normal() {
        double sum = 0;
        for (int term = 0; term < 4; ++term) {
            sum += static_cast<double>(next() >> 11) / 9007199254740992.0 - 0.5;
        }
        return static_cast<float>(sum * 1.7320508075688772);
    }
};

// Let the library have so many more pieces of memory, or threads, before it is refused one; negative: as many as it
// likes.
void limit_memory(int num_pieces);
void limit_threads(int num_threads);

int test_pool(uint64_t seed);
int test_kv(uint64_t seed, double seconds);
int replay(const char *file);

}  // namespace edge_vl_driver
