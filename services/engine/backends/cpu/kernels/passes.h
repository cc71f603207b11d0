// Passes over slices of a batch. One thread at a time works on a slice, and no thread waits for all others.
#pragma once

#include <vector>

#include "team.h"

class Passes {
public:
    explicit Passes(int slices) : done_(slices) {}

    // Calls work(pass, slice) for each slice in order, pass after pass, in any free thread. A call begins when the
    // earlier passes of this slice and of the slices before it are done; a token depends on nothing else.
    template <class Work>
    void run(int passes, const Work& work) {
        const int slices = int(done_.size());
        for (int item = next_.fetch_add(1); item < passes * slices; item = next_.fetch_add(1)) {
            const int pass = item / slices, slice = item % slices;
            for (int before = 0; before <= slice; ++before)
                wait_until(done_[before], [pass](int passed) { return passed >= pass; });
            work(pass, slice);
            done_[slice].store(pass + 1, std::memory_order_release);
            done_[slice].notify_all();
        }
    }

private:
    std::vector<std::atomic<int>> done_;  // passes of each slice
    std::atomic<int> next_{0};
};
