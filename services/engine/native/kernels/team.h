// The threads of one call: they take items until none is left, then wait for each other.
#pragma once

#include <atomic>
#include <sched.h>

class Team {
public:
    explicit Team(int size) : size_(size) {}

    // Calls work(item) once for each of [0, count), by whoever is free; returns when all are done.
    template <class Work>
    void each(int count, Work work) {
        for (int item = next_.fetch_add(1); item < count; item = next_.fetch_add(1)) work(item);
        wait();
    }

    // The same for ranges of up to `size` items.
    template <class Work>
    void ranges(int count, int size, Work work) {
        each((count + size - 1) / size, [&](int i) {
            int end = (i + 1) * size;
            work(i * size, end < count ? end : count);
        });
    }

    int size() const { return size_; }

private:
    // A barrier that spins for some microseconds: a sleeping thread takes longer to wake than most items take. Then it
    // gives the core away, since what it waits for may need it.
    void wait() {
        int round = round_.load();
        if (arrived_.fetch_add(1) + 1 == size_) {
            arrived_.store(0);
            next_.store(0);
            round_.store(round + 1);
            return;
        }
        for (int spins = 0; round_.load(std::memory_order_acquire) == round; ++spins) {
            if (spins > 2000) {
                sched_yield();
            } else {
#if defined(__x86_64__)
                __builtin_ia32_pause();
#endif
            }
        }
    }

    const int size_;
    alignas(64) std::atomic<int> next_{0};
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<int> round_{0};
};
