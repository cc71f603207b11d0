// AMX: a thread has eight tiles, each with up to 16 rows of 64 bytes.
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

// Linux lets a process use tiles only after this request.
inline bool ask_for_tiles() {
    constexpr long REQUEST = 0x1023, TILES = 18;
    return syscall(SYS_arch_prctl, REQUEST, TILES) == 0;
}
inline const bool HAS_TILES = ask_for_tiles();

// Tiles have 16 rows of 64 bytes, except that tiles 0 to 5 have `height` rows, and that tiles 5 and 7 are the left and
// the right side of products over `pairs` pairs.
struct alignas(64) Shapes {
    uint8_t palette = 1, start = 0, unused[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};

    explicit Shapes(int pairs, int height = 16) {
        std::fill_n(rows, 6, uint8_t(height));
        bytes[5] = uint16_t(4 * pairs);
        rows[7] = uint8_t(pairs);
    }

    // Those of products by right sides, in tiles 5 and 7, of so many columns.
    static Shapes with_columns(int columns) {
        Shapes shapes(16);
        for (int tile : {0, 1, 2, 3, 5, 7}) shapes.bytes[tile] = uint16_t(4 * columns);
        return shapes;
    }
};

// The intrinsic does not tell the compiler that all of the structure is read.
inline void load_shapes(const Shapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes)); }

// A thread has tiles as long as this lives.
//
// If two threads share a core, products are slower the more tiles were written since shapes were loaded: with all eight
// they take up to twice as long as with six. Probably the processor runs out of tiles to rename them to.
struct Units {
    Units() {
        if (HAS_TILES) load_shapes(Shapes(16));
    }
    ~Units() {
        if (HAS_TILES) _tile_release();
    }
    Units(const Units&) = delete;
};

// Tiles of other shapes, as long as this lives.
class ShapedTiles {
public:
    explicit ShapedTiles(const Shapes& shapes) : shapes_(shapes) { renew(); }
    ~ShapedTiles() { load_shapes(Shapes(16)); }
    ShapedTiles(const ShapedTiles&) = delete;

    // Makes the tiles as if none had been written.
    void renew() const { load_shapes(shapes_); }

private:
    const Shapes shapes_;
};

// Makes the compiler write pending stores, because it does not know that tiles are loaded from memory.
inline void settle() { asm volatile("" ::: "memory"); }

// Calls work(T) for T from 0 to COUNT - 1, each a constant.
template <int COUNT, class Work>
inline void for_tiles(const Work& work) {
    [&]<int... T>(std::integer_sequence<int, T...>) {
        (work(std::integral_constant<int, T>{}), ...);
    }(std::make_integer_sequence<int, COUNT>{});
}

// The compiler's intrinsics for these take literals only, not template parameters. Lines are `step` bytes apart.
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
// Adds the products of LEFT's rows by RIGHT's columns, over bfloat16 pairs, to the sums in T.
template <int T, int LEFT, int RIGHT>
inline void multiply_tiles() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(T), "i"(LEFT), "i"(RIGHT));
}

#endif
