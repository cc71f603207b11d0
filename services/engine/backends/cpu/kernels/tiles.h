// AMX: a thread's eight tiles, each up to 16 rows of 64 bytes, and what is done with them.
#pragma once

#if defined(__AMX_BF16__)

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

// Linux saves the tiles of processes that asked for them.
inline bool ask_for_tiles() {
    constexpr long REQUEST = 0x1023, TILES = 18;
    return syscall(SYS_arch_prctl, REQUEST, TILES) == 0;
}
inline const bool HAS_TILES = ask_for_tiles();

// Each tile has 16 rows of 64 bytes; but tiles 0 to 5 have `height`, and for products of `pairs` pairs there are tiles 5 and
// 7: rows by them, and them by columns.
struct alignas(64) Shapes {
    uint8_t palette = 1, start = 0, unused[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};

    explicit Shapes(int pairs, int height = 16) {
        std::fill_n(rows, 6, uint8_t(height));
        bytes[5] = uint16_t(4 * pairs);
        rows[7] = uint8_t(pairs);
    }
};

// The intrinsic does not tell the compiler that all of it is read.
inline void load_shapes(const Shapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes)); }

// A thread has tiles as long as this lives.
//
// On cores that others share, products take the longer the more tiles were written to since shapes were loaded, with all
// eight up to twice as long as with six: it seems that fewer are left to rename them to.
struct Units {
    Units() {
        if (HAS_TILES) load_shapes(Shapes(16));
    }
    ~Units() {
        if (HAS_TILES) _tile_release();
    }
    Units(const Units&) = delete;
};

// And are for `height` rows, two of them for products of 8 pairs, from the first renew() on as long as this lives.
class HalfTiles {
public:
    explicit HalfTiles(int height) : shapes_(8, height) {}
    ~HalfTiles() { load_shapes(Shapes(16)); }
    HalfTiles(const HalfTiles&) = delete;

    // As if none had been written to.
    void renew() const { load_shapes(shapes_); }

private:
    const Shapes shapes_;
};

// What was written is in memory: the compiler does not know that tiles are loaded from there.
inline void settle() { asm volatile("" ::: "memory"); }

// Calls work(T) for T from 0 to COUNT - 1, each a constant.
template <int COUNT, class Work>
inline void for_tiles(const Work& work) {
    [&]<int... T>(std::integer_sequence<int, T...>) {
        (work(std::integral_constant<int, T>{}), ...);
    }(std::make_integer_sequence<int, COUNT>{});
}

// The compiler's own functions for these take numbers alone, no template's parameter. Lines are `step` bytes apart.
template <int T>
inline void clear_tile() {
    asm volatile("tilezero %%tmm%c0" ::"i"(T));
}
template <int T>
inline void load_tile(const void* from, size_t step) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(step), "i"(T));
}
template <int T>
inline void store_tile(void* to, size_t step) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(step), "i"(T) : "memory");
}
// Adds products of bfloat16 pairs, those of the rows of LEFT by those of RIGHT's columns, to the sums of T.
template <int T, int LEFT, int RIGHT>
inline void multiply_tiles() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(T), "i"(LEFT), "i"(RIGHT));
}

#endif
