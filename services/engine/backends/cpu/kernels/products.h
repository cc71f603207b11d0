// Products of rows by packed weights.
//
// Each sum runs over the depth in one order, for any number of rows and threads, so a row's product is bitwise the same
// in any batch.
#pragma once

#include <algorithm>
#include <span>
#include <type_traits>

#include "groups.h"
#include "pages.h"
#include "team.h"

// How a matrix is kept. packing.py has the same kinds; Python compares the names when it loads the library.
#define WEIGHT_KINDS(kind) kind(FLOAT32) kind(BFLOAT16) kind(INT8) kind(BFLOAT16_DOTS) kind(GROUPS) kind(GROUPS_DOTS) \
    kind(FLOAT32_THIRDS)
#define COMMA(name) name,
#define WORD(name) #name " "
enum class WeightKind : int32_t { WEIGHT_KINDS(COMMA) };
constexpr const char* WEIGHT_KIND_NAMES = WEIGHT_KINDS(WORD);
#undef COMMA
#undef WORD

// [outputs, inputs] in panels of WIDTH outputs, each [inputs][WIDTH]; the last panel is filled up with zeros. BFLOAT16
// is Paired, see vectors.h; BFLOAT16_DOTS, for bfloat16 rows, is Dotted, see dots.h. GROUPS, and GROUPS_DOTS for bfloat16
// rows, are described in groups.h. FLOAT32_THIRDS is FLOAT32 for rows of thirds, see thirds.h.
struct Matrix {
    const void* panels;
    const float* scales;  // [outputs] of int8, by which the sums are multiplied
    const float* bias;    // [outputs] or null
    int32_t inputs, outputs;
    WeightKind kind;
    Groups groups;  // of the kinds that have groups

    // Groups of a panel: all, or `count` from `first` on.
    GroupRange groups_of(int panel) const { return groups_of(panel, 0, inputs / groups.size); }
    GroupRange groups_of(int panel, int first, int count) const {
        const size_t begin = size_t(panel) * groups.panel_bytes(inputs);
        return {static_cast<const uint8_t*>(panels) + begin, inputs, first, count};
    }
    int num_panels() const { return (outputs + WIDTH - 1) / WIDTH; }
};

// `count` rows cut into tiles of nearly equal height: [tile][depth][height]. A few rows take little of the first-level
// cache, because every panel is multiplied by all of their numbers.
struct Tiles {
    int count, height, tiles;

    explicit Tiles(int rows) : count(rows) {
        tiles = (rows + ROWS - 1) / ROWS;
        height = (rows + tiles - 1) / tiles;
        tiles = (rows + height - 1) / height;
    }
    int rows_of(int tile) const { return tile + 1 < tiles ? height : count - tile * height; }
    // The index of a row's number at a depth of `depths`.
    size_t at(int row, int depth, int depths) const {
        return (size_t(row / height) * depths + depth) * height + row % height;
    }
    size_t size(int depths) const { return size_t(tiles) * height * depths; }
};

constexpr int AHEAD = 48;  // how many depths before its use a panel is prefetched

struct Nothing {
    template <class... Any>
    void operator()(const Any&...) const {}
};

// Sums of some rows by the two halves of a panel.
using Sums = std::span<Vector[2]>;

// What becomes of the sums of a product. Products know not its type, or they would be compiled for each.
class Finish {
public:
    template <class Own>
    Finish(const Own& own)
        : own_(&own),
          finish_([](const void* own, int panel, int row, Sums sums) { of<Own>(own)(panel, row, sums); }),
          expect_([](const void* own, int panel, int row, int rows) { of<Own>(own).expect(panel, row, rows); }) {}

    // Gets the sums of each tile, or of a part of it, in each panel. `row` is the first one.
    void operator()(int panel, int row, Sums sums) const { finish_(own_, panel, row, sums); }

    // Is called before the sums are computed, and may prefetch where they will be written.
    void expect(int panel, int row, int rows) const { expect_(own_, panel, row, rows); }

private:
    template <class Own>
    static const Own& of(const void* own) {
        return *static_cast<const Own*>(own);
    }

    const void* own_;
    void (*finish_)(const void*, int, int, Sums);
    void (*expect_)(const void*, int, int, int);
};

// Stores a panel's columns as floats.
struct Widen {
    float* to;

    void operator()(Vector a, Vector b) {
        store(to, a);
        store(to + LANES, b);
        to += WIDTH;
    }
};

// Prefetches the rest of a panel, and a share of the next one: `step` bytes for each depth.
struct PrefetchPanel {
    const char* later;
    int step;

    template <class Stored>
    void operator()(const Stored* const (&columns)[2]) {
        prefetch(columns[0] + AHEAD * WIDTH);
        if constexpr (sizeof(Stored) > 2) prefetch(columns[1] + AHEAD * WIDTH);
        prefetch<0, 2>(later);
        later += step;
    }
};

// Prefetches the rest of several panels.
struct PrefetchSeveral {
    template <class Stored, int V>
    void operator()(const Stored* const (&columns)[V]) {
#pragma GCC unroll 8
        for (int v = 0; v < V; v += 2) {
            prefetch(columns[v] + AHEAD * WIDTH);
            if constexpr (sizeof(Stored) > 2) prefetch(columns[v + 1] + AHEAD * WIDTH);
        }
    }
};

// V vectors of columns of `count` depths.
template <class Stored, int V>
struct Run {
    const Stored* columns[V];
    int count;
};

// sums[R][V] of rows [R, depth] by the columns of `count` runs, one after another; not FRESH: added to the sums that
// are there. The next row is STEP further, the next depth `along` further in the rows and `step` in the columns.
// `fetch(columns)` prefetches, `keep(a, b)` gets two vectors of columns as floats.
//
// Not inlined, because among other code the compiler does not keep all sums in registers.
template <int R, int V, int STEP, bool FRESH, class Stored, class Fetch = Nothing, class Keep = Nothing>
__attribute__((noinline)) void sum_products(Vector (&sums)[R][V], const float* rows, int along,
                                            const Run<Stored, V>* runs, int count, size_t step, Fetch fetch = {},
                                            Keep keep = {}) {
    Vector own[R][V];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) own[r][v] = FRESH ? Vector{} : sums[r][v];
    for (const Run<Stored, V>& run : std::span(runs, count)) {
        const Stored* columns[V];
        std::copy_n(run.columns, V, columns);
        for (int k = 0; k < run.count; ++k, rows += along) {
            fetch(columns);
            Vector loaded[V];
#pragma GCC unroll 8
            for (int v = 0; v < V; v += 2) {
                load_two(columns[v], columns[v + 1], loaded[v], loaded[v + 1]);
                columns[v] += step;
                columns[v + 1] += step;
            }
            keep(loaded[0], loaded[1]);
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
                const Vector x = broadcast(rows[r * STEP]);
#pragma GCC unroll 8
                for (int v = 0; v < V; ++v) own[r][v] += x * loaded[v];
            }
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) sums[r][v] = own[r][v];
}

// Calls work.template operator()<R>() with R = rows, 1 to ROWS.
template <int R = ROWS, class Work>
inline void with_rows(int rows, const Work& work) {
    if constexpr (R > 0) {
        if (rows == R) return work(std::integral_constant<int, R>{});
        with_rows<R - 1>(rows, work);
    }
}

constexpr size_t SECOND_CACHE = 640 << 10;  // bytes of rows that stay in a core's second-level cache beside a panel

// Up to so many tiles, weights that are not floats are converted for each tile. For more, the floats are stored and
// read again.
constexpr int CONVERT_FOR_EACH = 3;

// One thread's share of a product.
template <class Weight>
class Share {
public:
    Share(const Matrix& matrix, const float* packed, const Tiles& tiles, const Finish& finish)
        : matrix_(matrix), packed_(packed), tiles_(tiles), finish_(finish) {}

    // Tiles [first, last) by panels [begin, end). With many tiles, the first one stores each panel as floats for the
    // others.
    void run(int first, int last, int begin, int end) const {
        if (tiles_.count <= FEWEST)
            for (; begin + 4 <= end; begin += 4) multiply_several<4, FEWEST>(begin);
        if (tiles_.count <= FEW)
            for (; begin + 2 <= end; begin += 2) multiply_several<2, FEW>(begin);
        const size_t size = size_t(matrix_.inputs) * WIDTH;
        thread_local Numbers wide;
        if (wide.size() < size) wide.resize(size);
        const bool widened = sizeof(Weight) < sizeof(float) && last - first > CONVERT_FOR_EACH;
        const int step = int(WIDTH * sizeof(Weight)) / (last - first);
        for (int panel = begin; panel < end; ++panel) {
            const Weight* weights = static_cast<const Weight*>(matrix_.panels) + panel * size;
            const char* next = reinterpret_cast<const char*>(panel + 1 < end ? weights + size : weights);
            for (int tile = first; tile < last; ++tile) {
                const PrefetchPanel fetch{next + size_t(tile - first) * matrix_.inputs * step, step};
                if (!widened)
                    multiply(tile, panel, weights, fetch, Nothing());
                else if (tile == first)
                    multiply(tile, panel, weights, fetch, Widen{wide.data()});
                else
                    multiply(tile, panel, static_cast<const float*>(wide.data()), fetch, Nothing());
            }
        }
    }

private:
    template <class Stored, class Keep>
    void multiply(int tile, int panel, const Stored* weights, const PrefetchPanel& fetch, const Keep& keep) const {
        const int row = tile * tiles_.height, rows = tiles_.rows_of(tile);
        finish_.expect(panel, row, rows);
        with_rows(rows, [&](auto R) {
            Vector sums[R][2];
            const Run<Stored, 2> run{{weights, weights + LANES}, matrix_.inputs};
            const float* from = packed_ + tiles_.at(row, 0, matrix_.inputs);
            sum_products<R, 2, 1, true>(sums, from, tiles_.height, &run, 1, WIDTH, fetch, keep);
            finish_(panel, row, sums);
        });
    }

    // Few rows by several panels at once: an addition waits for the one before it, so many sums run side by side.
    template <int PANELS, int MOST>
    void multiply_several(int panel) const {
        const size_t size = size_t(matrix_.inputs) * WIDTH;
        const Weight* weights = static_cast<const Weight*>(matrix_.panels) + panel * size;
        Run<Weight, 2 * PANELS> run{{}, matrix_.inputs};
        for (int i = 0; i < PANELS; ++i, weights += size) {
            run.columns[2 * i] = weights;
            run.columns[2 * i + 1] = weights + LANES;
            finish_.expect(panel + i, 0, tiles_.count);
        }
        with_rows<MOST>(tiles_.count, [&](auto R) {
            Vector sums[R][2 * PANELS];
            sum_products<R, 2 * PANELS, 1, true>(sums, packed_, R, &run, 1, WIDTH, PrefetchSeveral());
            for (int i = 0; i < PANELS; ++i) {
                Vector own[R][2];
                for (int r = 0; r < R; ++r) std::copy_n(sums[r] + 2 * i, 2, own[r]);
                finish_(panel + i, 0, own);
            }
        });
    }

    const Matrix& matrix_;
    const float* packed_;
    const Tiles& tiles_;
    const Finish& finish_;
};

// Splits a product over threads. A core gets as many tiles, of `size` bytes, as stay in its cache, and some
// neighbouring panels. With a single tile it gets few panels: `together`, if there are enough for all threads.
template <class Crew, class Work>
void share_out(Crew& crew, const Matrix& matrix, int tiles, size_t size, int together, const Work& work) {
    const int panels = matrix.num_panels();
    if (tiles == 1) {
        const int each = std::clamp(panels / crew.size(), 1, together);
        return each_range(crew, panels, each, [&](int begin, int end) { work(0, 1, begin, end); });
    }
    const int most = std::max(4, int(SECOND_CACHE / size));  // with fewer than four, weights would be read too often
    const int blocks = (tiles + most - 1) / most;
    const int groups = std::min(panels, crew.size() == 1 ? 1 : 4 * crew.size());
    const auto part = [](int count, int i, int parts) { return int(int64_t(count) * i / parts); };
    crew.each(blocks * groups, [&](int item) {
        const int block = item / groups, group = item % groups;
        work(part(tiles, block, blocks), part(tiles, block + 1, blocks), part(panels, group, groups),
             part(panels, group + 1, groups));
    });
}

class GroupShare;

// Multiplies rows, in tiles, by a matrix.
template <class Crew>
void multiply(Crew& crew, const Matrix& matrix, const float* packed, const Tiles& tiles, const Finish& finish) {
    const size_t size = size_t(matrix.inputs) * tiles.height * sizeof(float);
    const auto by = [&]<class Own>(const Own*) {
        const Own share(matrix, packed, tiles, finish);
        const int together = tiles.count <= FEWEST ? 4 : tiles.count <= FEW ? 2 : 1;
        share_out(crew, matrix, tiles.tiles, size, together, [&](auto... range) { share.run(range...); });
    };
    if (matrix.kind == WeightKind::FLOAT32) by(static_cast<const Share<float>*>(nullptr));
    if (matrix.kind == WeightKind::BFLOAT16) by(static_cast<const Share<Paired>*>(nullptr));
    if (matrix.kind == WeightKind::INT8) by(static_cast<const Share<int8_t>*>(nullptr));
    if (matrix.kind == WeightKind::GROUPS) by(static_cast<const GroupShare*>(nullptr));
}
