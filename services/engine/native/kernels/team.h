// The threads of one call: they take items until none is left, then wait for each other.
#pragma once

#include <atomic>

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
    // sleeps, so that a thread that waits for a core behind another process can have this one.
    void wait() {
        const int round = round_.load();
        if (arrived_.fetch_add(1) + 1 == size_) {
            arrived_.store(0);
            next_.store(0);
            round_.store(round + 1);
            round_.notify_all();
            return;
        }
        for (int spins = 0; spins < SPINS; ++spins) {
            if (round_.load(std::memory_order_acquire) != round) return;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
        while (round_.load(std::memory_order_acquire) == round) round_.wait(round);
    }

    static constexpr int SPINS = 500;
    const int size_;
    alignas(64) std::atomic<int> next_{0};
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<int> round_{0};
};
