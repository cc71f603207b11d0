// Runs operations by a team, and writes what happened: ITEMS is the number of items of each operation. The last thread
// of the team begins only when the others have finished everything.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "team.h"

int main(int count, char** arguments) {
    const int threads = std::atoi(arguments[1]);
    std::vector<int> items;
    for (int i = 2; i < count; ++i) items.push_back(std::atoi(arguments[i]));
    std::vector<std::vector<std::atomic<int>>> times;  // that each item was done
    for (int size : items) times.emplace_back(size);
    std::atomic<bool> early{false};  // an item began before the operation before it was done
    std::vector<std::atomic<int>> done(items.size());

    Team team(threads);
    std::atomic<int> late_items{0};
    const auto live = [&](bool late) {
        Member member(team);
        for (size_t operation = 0; operation < items.size(); ++operation)
            member.each(items[operation], [&](int item) {
                if (operation && done[operation - 1] != items[operation - 1]) early = true;
                ++times[operation][item];
                ++done[operation];
                late_items += late;
            });
    };
    std::vector<std::thread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(live, false);
    for (std::thread& other : others) other.join();
    live(threads > 1);

    bool once = true;
    for (const auto& operation : times)
        once = once && std::all_of(operation.begin(), operation.end(), [](const auto& n) { return n == 1; });
    std::printf("%d %d %d\n", once, early.load(), late_items.load());
}
