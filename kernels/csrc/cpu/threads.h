// The few things that the pool needs of the operating system: threads, a mutex, a condition, the time.

#pragma once

#include <stdint.h>

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>
#endif

namespace edge_vl {

#if defined(_WIN32)

struct Mutex {
    bool init() { return true; }
    void destroy() {}
    void lock() { AcquireSRWLockExclusive(&lock_); }
    void unlock() { ReleaseSRWLockExclusive(&lock_); }
    SRWLOCK lock_ = SRWLOCK_INIT;
};

struct Condition {
    bool init() { return true; }
    void destroy() {}
    void wait(Mutex *mutex) { SleepConditionVariableSRW(&condition_, &mutex->lock_, INFINITE, 0); }
    void wake_all() { WakeAllConditionVariable(&condition_); }
    CONDITION_VARIABLE condition_ = CONDITION_VARIABLE_INIT;
};

struct Thread {
    bool start(void (*run)(void *), void *argument) {
        run_ = run;
        argument_ = argument;
        handle_ = CreateThread(nullptr, 0, begin, this, 0, nullptr);
        return handle_ != nullptr;
    }
    void join() {
        WaitForSingleObject(handle_, INFINITE);
        CloseHandle(handle_);
    }
    static DWORD WINAPI begin(void *self) {
        static_cast<Thread *>(self)->run_(static_cast<Thread *>(self)->argument_);
        return 0;
    }
    void (*run_)(void *) = nullptr;
    void *argument_ = nullptr;
    HANDLE handle_ = nullptr;
};

inline int64_t process_id() { return 0; }  // there is no fork

inline int64_t monotonic_ns() {
    LARGE_INTEGER count, frequency;
    QueryPerformanceCounter(&count);
    QueryPerformanceFrequency(&frequency);
    return static_cast<int64_t>(static_cast<double>(count.QuadPart) * 1e9 / static_cast<double>(frequency.QuadPart));
}

#else

struct Mutex {
    bool init() { return pthread_mutex_init(&mutex_, nullptr) == 0; }
    void destroy() { pthread_mutex_destroy(&mutex_); }
    void lock() { pthread_mutex_lock(&mutex_); }
    void unlock() { pthread_mutex_unlock(&mutex_); }
    pthread_mutex_t mutex_;
};

struct Condition {
    bool init() { return pthread_cond_init(&condition_, nullptr) == 0; }
    void destroy() { pthread_cond_destroy(&condition_); }
    void wait(Mutex *mutex) { pthread_cond_wait(&condition_, &mutex->mutex_); }
    void wake_all() { pthread_cond_broadcast(&condition_); }
    pthread_cond_t condition_;
};

struct Thread {
    // Signals are left to the threads of the program: its handlers may need what only those have.
    bool start(void (*run)(void *), void *argument) {
        run_ = run;
        argument_ = argument;
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        const bool is_started = pthread_create(&thread_, nullptr, begin, this) == 0;
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        return is_started;
    }
    void join() { pthread_join(thread_, nullptr); }
    static void *begin(void *self) {
        static_cast<Thread *>(self)->run_(static_cast<Thread *>(self)->argument_);
        return nullptr;
    }
    void (*run_)(void *) = nullptr;
    void *argument_ = nullptr;
    pthread_t thread_ = {};
};

inline int64_t process_id() { return getpid(); }

inline int64_t monotonic_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<int64_t>(now.tv_sec) * 1000000000 + now.tv_nsec;
}

#endif

// Let another thread have this core, if one wants it.
inline void yield() {
#if defined(_WIN32)
    SwitchToThread();
#else
    sched_yield();
#endif
}

// Tell the processor that this thread waits in a loop.
inline void pause() {
#if defined(_WIN32)
    YieldProcessor();
#elif defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb");  // on most cores `yield` takes no time at all
#endif
}

}  // namespace edge_vl
