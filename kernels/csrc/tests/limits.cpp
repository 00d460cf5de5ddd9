// Stands between the library and the system where it asks for memory and threads (CMakeLists.txt renames the calls).

#undef posix_memalign
#undef pthread_create

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include <atomic>

#include "check.h"

namespace {

std::atomic<int> pieces_left{-1};
std::atomic<int> threads_left{-1};

bool take_one(std::atomic<int> *left) {
    if (left->load() < 0) {
        return true;
    }
    if (left->load() == 0) {
        return false;
    }
    left->fetch_sub(1);
    return true;
}

}  // namespace

namespace edge_vl_driver {

void limit_memory(int num_pieces) { pieces_left = num_pieces; }
void limit_threads(int num_threads) { threads_left = num_threads; }

}  // namespace edge_vl_driver

extern "C" int edge_vl_driver_posix_memalign(void **memory, size_t alignment, size_t size) {
    return take_one(&pieces_left) ? posix_memalign(memory, alignment, size) : ENOMEM;
}

extern "C" int edge_vl_driver_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                                             void *(*run)(void *), void *argument) {
    return take_one(&threads_left) ? pthread_create(thread, attributes, run, argument) : EAGAIN;
}
