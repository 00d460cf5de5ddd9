// The thread pool: every task once, by one thread at a time; what happens without memory, without threads, after a
// fork.

#include <dirent.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <vector>

#include "../cpu/pool.h"
#include "check.h"

namespace edge_vl_driver {
namespace {

constexpr int kMaxTasks = 40;
constexpr int kMaxThreads = 7;

struct Run {
    int num_threads;
    int long_task;                       // takes longer than the others wait in a loop; -1: none
    std::atomic<int> busy[kMaxThreads];  // tasks that a thread runs right now
    int counts[kMaxTasks];               // not atomic: a task and the caller may touch its own
};

void sleep_us(long microseconds) {
    const timespec duration = {0, microseconds * 1000};
    nanosleep(&duration, nullptr);
}

void count_task(void *state, int task, int thread) {
    Run *run = static_cast<Run *>(state);
    CHECK(thread >= 0 && thread < run->num_threads, "thread %d of %d", thread, run->num_threads);
    CHECK(run->busy[thread].fetch_add(1) == 0, "thread %d has two tasks at once", thread);
    if (task == run->long_task) {
        sleep_us(150);
    }
    ++run->counts[task];
    run->busy[thread].fetch_sub(1);
}

void run_once(edge_vl_kernels_pool *pool, Random *random) {
    Run run = {};
    run.num_threads = edge_vl::pool_threads(pool);
    const int num_tasks = static_cast<int>(random->between(0, kMaxTasks));
    run.long_task = random->one_in(20) ? static_cast<int>(random->between(0, kMaxTasks - 1)) : -1;
    edge_vl::pool_run(pool, num_tasks, count_task, &run);
    for (int task = 0; task < kMaxTasks; ++task) {
        CHECK(run.counts[task] == (task < num_tasks), "task %d of %d ran %d times", task, num_tasks, run.counts[task]);
    }
}

int num_threads_here() {
    int count = 0;
    if (DIR *folder = opendir("/proc/self/task")) {
        while (const dirent *entry = readdir(folder)) {
            count += entry->d_name[0] != '.';
        }
        closedir(folder);
    }
    return count;
}

// A thread that has been waited for is listed a moment longer.
void check_that_threads_have_ended(int before) {
    for (int look = 0; look < 1000 && num_threads_here() > before; ++look) {
        sleep_us(1000);
    }
    CHECK(num_threads_here() <= before, "%d threads before, %d after", before, num_threads_here());
}

edge_vl_kernels_pool *new_pool(int num_threads) {
    edge_vl_kernels_pool *pool = edge_vl_kernels_pool_new(EDGE_VL_KERNELS_ISA_SCALAR, num_threads);
    CHECK(pool != nullptr, "no pool of %d threads", num_threads);
    CHECK(edge_vl::pool_threads(pool) == num_threads, "%d threads", edge_vl::pool_threads(pool));
    CHECK(edge_vl::pool_isa(pool) == EDGE_VL_KERNELS_ISA_SCALAR, "instruction set %d", edge_vl::pool_isa(pool));
    return pool;
}

void every_task_runs_once(Random *random) {
    for (const int num_threads : {1, 2, 4, kMaxThreads}) {
        edge_vl_kernels_pool *pool = new_pool(num_threads);
        for (int run = 0; run < 1500; ++run) {
            if (random->one_in(20)) {
                sleep_us(random->between(10, 60));  // so that the threads are awake, asleep, or about to change
            }
            run_once(pool, random);
        }
        edge_vl_kernels_pool_free(pool);
    }
}

struct Sharing {
    std::atomic<int> num_tasks[kMaxThreads];
};

void sleep_and_count(void *state, int, int thread) {
    sleep_us(500);
    static_cast<Sharing *>(state)->num_tasks[thread].fetch_add(1);
}

void threads_that_sleep_are_woken_to_share_the_work() {
    edge_vl_kernels_pool *pool = new_pool(3);
    for (int run = 0; run < 3; ++run) {
        sleep_us(2000);
        Sharing sharing = {};
        edge_vl::pool_run(pool, 60, sleep_and_count, &sharing);
        for (int thread = 0; thread < 3; ++thread) {
            CHECK(sharing.num_tasks[thread] > 0, "thread %d of 3 does nothing", thread);
        }
    }
    edge_vl_kernels_pool_free(pool);
}

void a_pool_ends_whenever_it_is_freed(Random *random) {
    const int before = num_threads_here();
    for (int pool_index = 0; pool_index < 100; ++pool_index) {
        edge_vl_kernels_pool *pool = new_pool(4);
        if (random->one_in(2)) {
            run_once(pool, random);
        }
        if (random->one_in(3)) {
            sleep_us(random->between(1, 60));
        }
        edge_vl_kernels_pool_free(pool);
    }
    edge_vl_kernels_pool_free(nullptr);
    check_that_threads_have_ended(before);
}

struct Memory {
    edge_vl_kernels_pool *pool;
    size_t bytes;
};

void fill_scratch(void *state, int, int thread) {
    const Memory *memory = static_cast<Memory *>(state);
    auto *scratch = static_cast<unsigned char *>(edge_vl::pool_scratch(memory->pool, thread, memory->bytes));
    CHECK(scratch != nullptr, "no %zu bytes", memory->bytes);
    CHECK(reinterpret_cast<uintptr_t>(scratch) % 64 == 0, "aligned to less than 64 bytes");
    for (size_t index = 0; index < memory->bytes; ++index) {
        scratch[index] = static_cast<unsigned char>(thread);
    }
    for (size_t index = 0; index < memory->bytes; ++index) {
        CHECK(scratch[index] == thread, "another thread wrote to byte %zu", index);
    }
}

void every_thread_has_its_own_memory(Random *random) {
    edge_vl_kernels_pool *pool = new_pool(4);
    for (int run = 0; run < 50; ++run) {
        Memory memory = {pool, static_cast<size_t>(random->between(1, 20000))};
        edge_vl::pool_run(pool, 16, fill_scratch, &memory);
    }
    void *kept = edge_vl::pool_scratch(pool, 0, 30000);
    CHECK(edge_vl::pool_scratch(pool, 0, 100) == kept, "memory is not kept");
    limit_memory(0);
    CHECK(edge_vl::pool_scratch(pool, 0, 30000) == kept, "what is there needs no memory");
    CHECK(edge_vl::pool_scratch(pool, 0, 40000) == nullptr, "there was no memory to be had");
    limit_memory(-1);
    CHECK(edge_vl::pool_scratch(pool, 0, 40000) != nullptr, "there is memory again");
    edge_vl_kernels_pool_free(pool);
}

void without_memory_or_threads_there_is_no_pool() {
    const int before = num_threads_here();
    for (int limit = 0; limit < 2; ++limit) {
        limit_memory(limit);
        CHECK(edge_vl_kernels_pool_new(EDGE_VL_KERNELS_ISA_SCALAR, 4) == nullptr, "with %d pieces", limit);
    }
    limit_memory(-1);
    for (int limit = 0; limit < 3; ++limit) {
        limit_threads(limit);
        CHECK(edge_vl_kernels_pool_new(EDGE_VL_KERNELS_ISA_SCALAR, 4) == nullptr, "with %d threads", limit);
    }
    limit_threads(0);
    edge_vl_kernels_pool_free(new_pool(1));
    limit_threads(-1);
    CHECK(edge_vl_kernels_pool_new(EDGE_VL_KERNELS_ISA_SCALAR, 0) == nullptr, "of no threads");
    CHECK(edge_vl_kernels_pool_new(99, 1) == nullptr, "of an unknown instruction set");
    check_that_threads_have_ended(before);
}

void a_child_process_works_alone(Random *random) {
    edge_vl_kernels_pool *pool = new_pool(4);
    run_once(pool, random);
    const pid_t child = fork();
    CHECK(child >= 0, "no fork");
    if (child == 0) {
        alarm(20);  // a child that waits for threads it does not have would do so for ever
        for (int run = 0; run < 20; ++run) {
            run_once(pool, random);
        }
        Memory memory = {pool, 50000};
        edge_vl::pool_run(pool, 4, fill_scratch, &memory);
        edge_vl_kernels_pool_free(pool);
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child, "no child");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child's status is %d", status);
    run_once(pool, random);
    edge_vl_kernels_pool_free(pool);
}

}  // namespace

int test_pool(uint64_t seed) {
    Random random = {seed};
    every_task_runs_once(&random);
    threads_that_sleep_are_woken_to_share_the_work();
    a_pool_ends_whenever_it_is_freed(&random);
    every_thread_has_its_own_memory(&random);
    without_memory_or_threads_there_is_no_pool();
    a_child_process_works_alone(&random);
    return 0;
}

}  // namespace edge_vl_driver
