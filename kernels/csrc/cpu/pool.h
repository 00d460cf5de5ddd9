// A few threads that share the tasks of one kernel call, and the scratch memory of each.

#pragma once

#include <stddef.h>

#include "../edge_vl_kernels.h"

namespace edge_vl {

// One piece of the work. `thread` runs from 0 (the caller of `pool_run`) to `pool_threads(pool) - 1`; no two tasks that
// run at once have the same one. Which thread gets which task changes from run to run: a task writes to places of its
// own, and uses `thread` for its scratch memory alone.
using PoolTask = void (*)(void *state, int task, int thread);

// Run the tasks 0 to `num_tasks - 1`, on all threads of the pool, and return when the last one is done.
//
// What was written before is seen by the tasks, and what they write is seen afterwards. Not to be called by a task. In
// a child process made with fork, where there are no other threads any more, the caller runs every task.
void pool_run(edge_vl_kernels_pool *pool, int num_tasks, PoolTask task, void *state);

// Return at least `bytes` bytes (1 or more), aligned to 64, that belong to one thread until it asks for more; null if
// they cannot be had. The memory is kept for later calls; what it holds is lost when it grows.
void *pool_scratch(edge_vl_kernels_pool *pool, int thread, size_t bytes);

// Return how many threads there are, the caller of `pool_run` included.
int pool_threads(const edge_vl_kernels_pool *pool);

// Return the instruction set of its kernels, EDGE_VL_KERNELS_ISA_*.
int pool_isa(const edge_vl_kernels_pool *pool);

}  // namespace edge_vl
