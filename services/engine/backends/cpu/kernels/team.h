// The threads of a call: a team, whose threads take items until none is left and then wait for each other, or one
// alone.
#pragma once

#include <atomic>

// Spins for some microseconds, because waking a thread takes longer than most items. Then it sleeps, so that a thread
// that has no core can have this one.
template <class Reached>
inline void wait_until(const std::atomic<int>& value, const Reached& reached) {
    constexpr int SPINS = 500;
    for (int spins = 0; spins < SPINS; ++spins) {
        if (reached(value.load(std::memory_order_acquire))) return;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    for (int now; !reached(now = value.load(std::memory_order_acquire));) value.wait(now);
}

class Team {
public:
    explicit Team(int size) : size_(size) {}

    // Calls work(item) once for each of [0, count), in any free thread. Returns when all are done.
    template <class Work>
    void each(int count, Work work) {
        for (int item = next_.fetch_add(1); item < count; item = next_.fetch_add(1)) work(item);
        wait();
    }

    int size() const { return size_; }

private:
    void wait() {
        const int round = round_.load();
        if (arrived_.fetch_add(1) + 1 == size_) {
            arrived_.store(0);
            next_.store(0);
            round_.store(round + 1);
            round_.notify_all();
            return;
        }
        wait_until(round_, [round](int now) { return now != round; });
    }

    const int size_;
    alignas(64) std::atomic<int> next_{0};
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<int> round_{0};
};

// One thread with the interface of a team.
struct Alone {
    template <class Work>
    void each(int count, Work work) {
        for (int item = 0; item < count; ++item) work(item);
    }
    int size() const { return 1; }
};

// Calls work(first, end) for ranges of up to `size` of `count` items.
template <class Crew, class Work>
inline void each_range(Crew& crew, int count, int size, Work work) {
    crew.each((count + size - 1) / size, [&](int i) {
        const int end = (i + 1) * size;
        work(i * size, end < count ? end : count);
    });
}
