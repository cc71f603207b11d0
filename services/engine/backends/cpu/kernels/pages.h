// Vectors in huge pages. With small pages a core spends much of its time on looking up addresses.
#pragma once

#include <sys/mman.h>

#include <cstdlib>
#include <new>
#include <vector>

template <class T>
struct HugePages {
    using value_type = T;

    HugePages() = default;
    template <class U>
    HugePages(const HugePages<U>&) {}

    T* allocate(size_t count) {
        constexpr size_t PAGE = 2 << 20;
        const size_t size = (count * sizeof(T) + PAGE - 1) / PAGE * PAGE;
        void* memory = std::aligned_alloc(PAGE, size);
        if (!memory) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
        madvise(memory, size, MADV_HUGEPAGE);
#endif
        return static_cast<T*>(memory);
    }
    void deallocate(T* memory, size_t) { std::free(memory); }

    template <class U>
    bool operator==(const HugePages<U>&) const { return true; }
    template <class U>
    bool operator!=(const HugePages<U>&) const { return false; }
};

using Numbers = std::vector<float, HugePages<float>>;
