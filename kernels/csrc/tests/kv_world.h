// Caches of one model and the kernels that fill them, as a program that uses the C ABI would keep them.

#pragma once

#include <stddef.h>

#include <memory>
#include <vector>

#include "../edge_vl_kernels.h"

namespace edge_vl_driver {

constexpr int64_t kBlock = 64;

struct Free {
    void operator()(void *memory) const;
};

// A page without the rounding to 4 KiB: so a sanitizer sees what is read or written behind its last array.
using Page = std::shared_ptr<uint8_t>;
Page new_page(int64_t bytes);

struct Model {
    edge_vl_kernels_kv_model abi = {};  // points into the vectors below
    std::vector<edge_vl_kernels_kv_slice> slices;
    std::vector<float> cosines, sines;
    std::vector<int64_t> page_bytes;  // of each format
    std::vector<bool> is_raw;         // blocks of the format stay in their open page
    int64_t sinks_bytes = 0;

    int64_t open_format() const { return abi.num_formats - 1; }
    const edge_vl_kernels_kv_slice &slice(int64_t format, int64_t layer) const {
        return slices[static_cast<size_t>(format * abi.num_layers + layer)];
    }
    int64_t num_closed(int64_t num_entries) const {
        return num_entries <= abi.num_sinks ? 0 : (num_entries - abi.num_sinks - 1) / kBlock;
    }
    int64_t num_open(int64_t num_entries) const {
        return num_entries <= abi.num_sinks ? 0 : num_entries - abi.num_sinks - kBlock * num_closed(num_entries);
    }
};

// What a step does to one sequence.
struct Part {
    int sequence;
    int64_t num_rows, first_position;
    std::vector<int32_t> new_formats;  // of the blocks that it closes
    bool shares_open_page;             // blocks that it opens and closes again use one page in turn
};

struct Sequence {
    int64_t num_entries = 0;
    Page sinks, open_page;
    std::vector<Page> blocks;
    std::vector<int32_t> formats;
};

// Queries, keys, values and context of all rows of a step in one layer, laid out with strides.
struct Rows {
    std::vector<float> queries, keys, values, context;
    edge_vl_kernels_kv_rows abi = {};
};

class World {
public:
    World(const Model *model, int isa, int num_threads, int num_sequences);
    ~World() { edge_vl_kernels_pool_free(pool_); }
    World(const World &) = delete;
    World &operator=(const World &) = delete;

    // Make the pages of a step; then `run` each layer, then `end` it: `is_kept` false undoes it.
    void begin(const std::vector<Part> &parts);
    int32_t run(int64_t layer, const Rows &rows);
    void end(bool is_kept);

    std::vector<Sequence> sequences;
    edge_vl_kernels_pool *pool() const { return pool_; }
    const char *name() const { return name_; }

private:
    const Model *model_;
    edge_vl_kernels_pool *pool_;
    char name_[32];
    std::vector<Part> parts_;
    std::vector<Sequence> after_;
    std::vector<std::vector<Page>> open_pages_;
    std::vector<std::vector<void *>> block_addresses_, open_addresses_;
    std::vector<edge_vl_kernels_kv_sequence> steps_;
};

// Fill in `model->slices` and everything that follows from it, by the rules of kv_format.py.
//
// `precisions` has a key and a value precision for each layer of each format, that of open blocks last.
void lay_out(Model *model, const std::vector<int64_t> &precisions);

// Compare what two worlds hold of a sequence, byte by byte: its closed pages, and its open entries and sinks.
void check_same_pages(const Model &model, const Sequence &left, const Sequence &right, const char *name);

// Compare two contexts that are laid out alike, up to the rounding of the instruction set that `name` begins with.
void check_same_context(const Model &model, const Rows &left, const Rows &right, int64_t num_rows, const char *name);

}  // namespace edge_vl_driver
