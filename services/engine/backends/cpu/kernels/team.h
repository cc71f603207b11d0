// The threads of a call: a team, whose threads take items until none is left and then wait until all are done, or one
// alone.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

// Spins for some microseconds, because waking a thread takes longer than most items. Then it yields for some tenths of
// a millisecond: another process that waits for this core has it at a moment when this thread does nothing, and need
// not take it in the middle of an item. Then it sleeps.
template <class Reached>
inline void wait_until(const std::atomic<int>& value, const Reached& reached) {
    constexpr int SPINS = 100, YIELDS = 200, SPINS_BETWEEN = 20;
    const auto spin = [&](int times) {
        for (int spins = 0; spins < times; ++spins) {
            if (reached(value.load(std::memory_order_acquire))) return true;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
        return false;
    };
    if (spin(SPINS)) return;
    for (int yields = 0; yields < YIELDS; ++yields) {
        std::this_thread::yield();
        if (spin(SPINS_BETWEEN)) return;
    }
    for (int now; !reached(now = value.load(std::memory_order_acquire));) value.wait(now);
}

// What the threads of a call share. They do one operation after another, each of a number of items.
class Team {
public:
    explicit Team(int size) : size_(size) {}

private:
    friend class Member;

    const int size_;
    alignas(64) std::atomic<uint64_t> next_{0};  // the operation in the upper half, the next of its items in the lower
    alignas(64) std::atomic<int> items_done_{0};  // of the operation
    alignas(64) std::atomic<int> operations_done_{0};
};

// A thread's place in a team. All threads call `each` for the same operations in the same order. An operation ends with
// its items, so a thread whose core is taken between two items delays nobody: the others go on, and it skips what they
// have done meanwhile.
class Member {
public:
    explicit Member(Team& team) : team_(team) {}

    // Calls work(item) once for each of [0, count), in any free thread. Returns when all are done.
    template <class Work>
    void each(int count, Work work) {
        if (count <= 0) return;
        const int operation = operation_++;
        uint64_t next = team_.next_.load();
        while (int(next >> 32) == operation && int(uint32_t(next)) < count) {
            if (!team_.next_.compare_exchange_weak(next, next + 1)) continue;
            work(int(uint32_t(next)));
            if (team_.items_done_.fetch_add(1) + 1 == count) return finish(operation);
            next = team_.next_.load();
        }
        wait_until(team_.operations_done_, [operation](int done) { return done > operation; });
    }

    int size() const { return team_.size_; }

private:
    void finish(int operation) {
        team_.items_done_.store(0);
        team_.next_.store(uint64_t(operation + 1) << 32);
        team_.operations_done_.store(operation + 1);
        team_.operations_done_.notify_all();
    }

    Team& team_;
    int operation_ = 0;  // the next one of this thread
};

// One thread with the interface of a member.
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
