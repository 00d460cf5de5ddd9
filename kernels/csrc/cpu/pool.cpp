// The thread pool. Between two calls its threads wait in a loop for a moment, then they sleep.

#include "pool.h"

#include <stdlib.h>

#include <atomic>
#include <new>

#include "threads.h"

namespace edge_vl {
namespace {

constexpr size_t kCacheLine = 64;

// A kernel call has stages that follow each other within microseconds; waking a thread takes ten times as long. But
// between calls the cores belong to the engine's threads: so not for long, and each look lets others run. That also
// frees the core that the scheduler may just have woken a thread of ours on, with a task of this very call.
constexpr int64_t kSpinNs = 20000;
constexpr int kPausesPerLook = 8;

void *aligned_new(size_t bytes) {
#if defined(_WIN32)
    return _aligned_malloc(bytes, kCacheLine);
#else
    void *memory = nullptr;
    return posix_memalign(&memory, kCacheLine, bytes) == 0 ? memory : nullptr;
#endif
}

void aligned_free(void *memory) {
#if defined(_WIN32)
    _aligned_free(memory);
#else
    free(memory);
#endif
}

// A thread and its memory; on cache lines of its own, since each thread writes to its own one.
struct alignas(kCacheLine) Worker {
    edge_vl_kernels_pool *pool;
    Thread thread;
    void *scratch;
    size_t scratch_bytes;
};

// Wait in a loop until something holds, but not for long; return whether it does.
template <typename Predicate>
bool spin_until(Predicate holds) {
    const int64_t started_ns = monotonic_ns();
    do {
        for (int look = 0; look < kPausesPerLook; ++look) {
            if (holds()) {
                return true;
            }
            pause();
        }
        yield();
    } while (monotonic_ns() - started_ns < kSpinNs);
    return false;
}

}  // namespace
}  // namespace edge_vl

struct alignas(edge_vl::kCacheLine) edge_vl_kernels_pool {
    int isa;
    int num_threads;
    int64_t process;            // whose threads they are
    edge_vl::Worker *workers;   // (num_threads); the first one has no thread: it is the caller

    // The tasks of the call. Written while there are none left to claim, read only by who has claimed one.
    edge_vl::PoolTask task;
    void *state;
    int num_tasks;

    alignas(edge_vl::kCacheLine) std::atomic<int> num_unclaimed;
    alignas(edge_vl::kCacheLine) std::atomic<int> num_unfinished;
    std::atomic<bool> is_caller_asleep;
    std::atomic<int> num_asleep;
    std::atomic<bool> is_closing;
    edge_vl::Mutex mutex;
    edge_vl::Condition has_tasks, is_finished;
};

namespace edge_vl {
namespace {

// Run tasks until none is left.
void run_tasks(edge_vl_kernels_pool *pool, int thread) {
    int num_done = 0;
    int unclaimed = pool->num_unclaimed.load(std::memory_order_relaxed);
    while (unclaimed > 0) {
        // Who claims a task sees its description, and nobody writes another one before that task is finished.
        if (pool->num_unclaimed.compare_exchange_weak(unclaimed, unclaimed - 1, std::memory_order_acq_rel,
                                                      std::memory_order_relaxed)) {
            pool->task(pool->state, pool->num_tasks - unclaimed, thread);
            ++num_done;
            unclaimed = pool->num_unclaimed.load(std::memory_order_relaxed);
        }
    }
    if (num_done == 0 || pool->num_unfinished.fetch_sub(num_done, std::memory_order_seq_cst) != num_done) {
        return;
    }
    if (pool->is_caller_asleep.load(std::memory_order_seq_cst)) {
        pool->mutex.lock();
        pool->is_finished.wake_all();
        pool->mutex.unlock();
    }
}

void work(void *argument) {
    const Worker *worker = static_cast<Worker *>(argument);
    edge_vl_kernels_pool *pool = worker->pool;
    const int thread = static_cast<int>(worker - pool->workers);
    const auto has_work = [pool] {
        return pool->num_unclaimed.load(std::memory_order_seq_cst) > 0 ||
               pool->is_closing.load(std::memory_order_seq_cst);
    };
    while (true) {
        if (!spin_until(has_work)) {
            // Whoever brings work looks whether somebody sleeps after it; who goes to sleep says so before looking.
            pool->mutex.lock();
            pool->num_asleep.fetch_add(1, std::memory_order_seq_cst);
            while (!has_work()) {
                pool->has_tasks.wait(&pool->mutex);
            }
            pool->num_asleep.fetch_sub(1, std::memory_order_seq_cst);
            pool->mutex.unlock();
        }
        if (pool->is_closing.load(std::memory_order_seq_cst)) {
            return;
        }
        run_tasks(pool, thread);
    }
}

void wake_workers(edge_vl_kernels_pool *pool) {
    if (pool->num_asleep.load(std::memory_order_seq_cst) > 0) {
        pool->mutex.lock();
        pool->has_tasks.wake_all();
        pool->mutex.unlock();
    }
}

// End the first `num_started` threads, and free everything.
void destroy(edge_vl_kernels_pool *pool, int num_started) {
    // In a child process there are no threads to end, and the mutex may be held by one of them for ever.
    if (pool->process == process_id()) {
        pool->is_closing.store(true, std::memory_order_seq_cst);
        wake_workers(pool);
        for (int thread = 1; thread < num_started; ++thread) {
            pool->workers[thread].thread.join();
        }
        pool->is_finished.destroy();
        pool->has_tasks.destroy();
        pool->mutex.destroy();
    }
    for (int thread = 0; thread < pool->num_threads; ++thread) {
        aligned_free(pool->workers[thread].scratch);
    }
    aligned_free(pool->workers);
    aligned_free(pool);
}

}  // namespace

void pool_run(edge_vl_kernels_pool *pool, int num_tasks, PoolTask task, void *state) {
    if (num_tasks <= 1 || pool->num_threads == 1 || pool->process != process_id()) {
        for (int index = 0; index < num_tasks; ++index) {
            task(state, index, 0);
        }
        return;
    }
    pool->task = task;
    pool->state = state;
    pool->num_tasks = num_tasks;
    pool->num_unfinished.store(num_tasks, std::memory_order_relaxed);
    pool->num_unclaimed.store(num_tasks, std::memory_order_seq_cst);
    wake_workers(pool);
    run_tasks(pool, 0);
    const auto is_done = [pool] { return pool->num_unfinished.load(std::memory_order_seq_cst) == 0; };
    if (!spin_until(is_done)) {
        pool->mutex.lock();
        pool->is_caller_asleep.store(true, std::memory_order_seq_cst);
        while (!is_done()) {
            pool->is_finished.wait(&pool->mutex);
        }
        pool->is_caller_asleep.store(false, std::memory_order_seq_cst);
        pool->mutex.unlock();
    }
}

void *pool_scratch(edge_vl_kernels_pool *pool, int thread, size_t bytes) {
    Worker *worker = &pool->workers[thread];
    if (worker->scratch_bytes < bytes) {
        aligned_free(worker->scratch);
        worker->scratch = aligned_new(bytes);
        worker->scratch_bytes = worker->scratch == nullptr ? 0 : bytes;
    }
    return worker->scratch;
}

int pool_threads(const edge_vl_kernels_pool *pool) { return pool->num_threads; }

int pool_isa(const edge_vl_kernels_pool *pool) { return pool->isa; }

}  // namespace edge_vl

extern "C" {

edge_vl_kernels_pool *edge_vl_kernels_pool_new(int32_t isa, int32_t num_threads) {
    using namespace edge_vl;
    if (edge_vl_kernels_has_isa(isa) != 1 || num_threads < 1) {
        return nullptr;
    }
    void *memory = aligned_new(sizeof(edge_vl_kernels_pool));
    void *workers = aligned_new(static_cast<size_t>(num_threads) * sizeof(Worker));
    if (memory == nullptr || workers == nullptr) {
        aligned_free(memory);
        aligned_free(workers);
        return nullptr;
    }
    auto *pool = new (memory) edge_vl_kernels_pool{};
    pool->isa = isa;
    pool->num_threads = num_threads;
    pool->process = process_id();
    pool->workers = static_cast<Worker *>(workers);
    for (int thread = 0; thread < num_threads; ++thread) {
        new (&pool->workers[thread]) Worker{pool, Thread{}, nullptr, 0};
    }
    const bool has_mutex = pool->mutex.init();
    const bool has_conditions = pool->has_tasks.init() && pool->is_finished.init();
    if (!has_mutex || !has_conditions) {
        aligned_free(workers);
        aligned_free(memory);
        return nullptr;
    }
    for (int thread = 1; thread < num_threads; ++thread) {
        if (!pool->workers[thread].thread.start(work, &pool->workers[thread])) {
            destroy(pool, thread);
            return nullptr;
        }
    }
    return pool;
}

void edge_vl_kernels_pool_free(edge_vl_kernels_pool *pool) {
    if (pool != nullptr) {
        edge_vl::destroy(pool, pool->num_threads);
    }
}

}  // extern "C"
