#include "kv_world.h"

#include <math.h>
#include <string.h>

#include "check.h"

namespace edge_vl_driver {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kMaxGroupChannels = 128;
// Of a context whose values are about 1. Scores and sums are float32, only their order differs; but AVX-512 multiplies
// codes by queries and weights of 16 bits.
constexpr float kTolerance = 3e-5f, kAvx512Tolerance = 1e-3f;

int64_t round_up(int64_t size, int64_t multiple) { return (size + multiple - 1) / multiple * multiple; }

int64_t bits(int64_t precision) {
    constexpr int64_t kBits[] = {32, 16, 8, 4};
    return kBits[precision];
}

bool is_quantized(int64_t precision) { return precision >= EDGE_VL_KERNELS_INT8; }

edge_vl_kernels_kv_slice lay_out_slice(const edge_vl_kernels_kv_model &model, int64_t keys, int64_t values,
                                       int64_t offset) {
    const int64_t codes = kBlock * model.head_dim, value_scales = kBlock * model.num_value_groups;
    const int64_t sizes[] = {
        codes * bits(keys) / 8,
        is_quantized(keys) ? 2 * model.head_dim : 0,
        keys == EDGE_VL_KERNELS_INT4 ? 2 * model.head_dim : 0,
        codes * bits(values) / 8,
        is_quantized(values) ? 2 * value_scales : 0,
        values == EDGE_VL_KERNELS_INT4 ? 2 * value_scales : 0,
    };
    int64_t ends[6], end = 0;
    for (int array = 0; array < 6; ++array) {
        end += round_up(sizes[array], kAlignment);
        ends[array] = end;
    }
    return {keys, values, offset, end, ends[0], ends[1], ends[2], ends[3], ends[4]};
}

void check_same_bytes(const uint8_t *left, const uint8_t *right, int64_t count, const char *name, const char *what,
                      int64_t index) {
    if (memcmp(left, right, static_cast<size_t>(count)) == 0) {
        return;
    }
    int64_t byte = 0;
    while (left[byte] == right[byte]) {
        ++byte;
    }
    CHECK(false, "%s: %s %lld differs at byte %lld: %d and %d", name, what, static_cast<long long>(index),
          static_cast<long long>(byte), left[byte], right[byte]);
}

}  // namespace

void Free::operator()(void *memory) const { free(memory); }

Page new_page(int64_t bytes) {
    const auto size = static_cast<size_t>(round_up(bytes, kAlignment));
    auto *memory = static_cast<uint8_t *>(aligned_alloc(kAlignment, size));
    CHECK(memory != nullptr, "no %zu bytes", size);
    memset(memory, 0, size);
    return Page(memory, Free());
}

void lay_out(Model *model, const std::vector<int64_t> &precisions) {
    auto &abi = model->abi;
    abi.num_value_groups = (abi.head_dim + kMaxGroupChannels - 1) / kMaxGroupChannels;
    const auto num_layers = static_cast<size_t>(abi.num_layers), num_formats = static_cast<size_t>(abi.num_formats);
    CHECK(precisions.size() == 2 * num_layers * num_formats, "%zu precisions", precisions.size());
    for (size_t format = 0; format < num_formats; ++format) {
        int64_t offset = 0;
        for (size_t layer = 0; layer < num_layers; ++layer) {
            const int64_t *pair = &precisions[2 * (format * num_layers + layer)];
            const auto slice = lay_out_slice(abi, pair[0], pair[1], offset);
            offset += slice.head_bytes * abi.num_kv_heads;
            model->slices.push_back(slice);
        }
        model->page_bytes.push_back(offset);
        const auto is_open = [&](size_t index) { return precisions[index] == precisions.back(); };
        bool is_raw = true;
        for (size_t index = 2 * format * num_layers; index < 2 * (format + 1) * num_layers; ++index) {
            is_raw = is_raw && is_open(index);
        }
        model->is_raw.push_back(is_raw);
    }
    const int64_t rows = 2 * abi.num_layers * abi.num_kv_heads * abi.num_sinks;
    model->sinks_bytes = rows * abi.head_dim * bits(precisions.back()) / 8;
    abi.slices = model->slices.data();
    abi.cosines = model->cosines.data();
    abi.sines = model->sines.data();
}

World::World(const Model *model, int isa, int num_threads, int num_sequences)
    : sequences(static_cast<size_t>(num_sequences)), model_(model), pool_(edge_vl_kernels_pool_new(isa, num_threads)) {
    constexpr const char *kNames[] = {"scalar", "avx2", "avx512", "neon"};
    snprintf(name_, sizeof name_, "%s, %d threads", kNames[isa], num_threads);
    CHECK(pool_ != nullptr, "%s", name_);
    for (auto &sequence : sequences) {
        if (model->sinks_bytes) {
            sequence.sinks = new_page(model->sinks_bytes);
        }
        sequence.open_page = new_page(model->page_bytes.back());
    }
}

void World::begin(const std::vector<Part> &parts) {
    parts_ = parts;
    after_.clear();
    open_pages_.clear();
    block_addresses_.clear();
    open_addresses_.clear();
    steps_.clear();
    for (const Part &part : parts) {
        const Sequence &before = sequences[static_cast<size_t>(part.sequence)];
        Sequence after = before;
        after.num_entries += part.num_rows;
        after.formats.insert(after.formats.end(), part.new_formats.begin(), part.new_formats.end());
        std::vector<Page> open_pages = {before.open_page};
        for (const int32_t format : part.new_formats) {
            const bool stays = model_->is_raw[static_cast<size_t>(format)];
            const int64_t bytes = model_->page_bytes[static_cast<size_t>(format)];
            after.blocks.push_back(stays ? open_pages.back() : new_page(bytes));
            // The page that was open before the step stays as it is: the step may yet be undone.
            const bool is_used_again = part.shares_open_page && !stays && open_pages.size() > 1;
            open_pages.push_back(is_used_again ? open_pages.back() : new_page(model_->page_bytes.back()));
        }
        after.open_page = open_pages.back();
        std::vector<void *> block_addresses, open_addresses;
        for (const Page &page : after.blocks) {
            block_addresses.push_back(page.get());
        }
        for (const Page &page : open_pages) {
            open_addresses.push_back(page.get());
        }
        CHECK(static_cast<int64_t>(after.blocks.size()) == model_->num_closed(after.num_entries), "wrong program");
        after_.push_back(after);
        open_pages_.push_back(open_pages);
        block_addresses_.push_back(block_addresses);
        open_addresses_.push_back(open_addresses);
    }
    for (size_t index = 0; index < parts.size(); ++index) {
        const Sequence &before = sequences[static_cast<size_t>(parts[index].sequence)], &after = after_[index];
        steps_.push_back({before.num_entries, parts[index].num_rows, parts[index].first_position, before.sinks.get(),
                          static_cast<int64_t>(after.blocks.size()), block_addresses_[index].data(),
                          after.formats.data(), open_addresses_[index].data()});
    }
}

int32_t World::run(int64_t layer, const Rows &rows) {
    return edge_vl_kernels_kv_step(pool_, &model_->abi, steps_.data(), static_cast<int64_t>(steps_.size()), layer,
                                   &rows.abi);
}

void World::end(bool is_kept) {
    for (size_t index = 0; is_kept && index < parts_.size(); ++index) {
        sequences[static_cast<size_t>(parts_[index].sequence)] = after_[index];
    }
}

void check_same_pages(const Model &model, const Sequence &left, const Sequence &right, const char *name) {
    const auto &abi = model.abi;
    for (size_t block = 0; block < left.blocks.size(); ++block) {
        check_same_bytes(left.blocks[block].get(), right.blocks[block].get(),
                         model.page_bytes[static_cast<size_t>(left.formats[block])], name, "block",
                         static_cast<int64_t>(block));
    }
    const int64_t num_open = model.num_open(left.num_entries);
    const int64_t num_sinks = left.num_entries < abi.num_sinks ? left.num_entries : abi.num_sinks;
    const int64_t element = bits(model.slice(model.open_format(), 0).key_precision) / 8, row = element * abi.head_dim;
    for (int64_t layer = 0; layer < abi.num_layers; ++layer) {
        const auto &slice = model.slice(model.open_format(), layer);
        for (int64_t head = 0; head < abi.num_kv_heads; ++head) {
            const int64_t keys = slice.offset + head * slice.head_bytes;
            for (int64_t channel = 0; channel < abi.head_dim; ++channel) {
                const int64_t offset = keys + channel * kBlock * element;
                check_same_bytes(left.open_page.get() + offset, right.open_page.get() + offset, num_open * element,
                                 name, "open keys of channel", channel);
            }
            const int64_t values = keys + slice.values;
            check_same_bytes(left.open_page.get() + values, right.open_page.get() + values, num_open * row, name,
                             "open values of layer", layer);
            for (int64_t pair = 0; pair < 2 && num_sinks > 0; ++pair) {
                const int64_t sinks = ((layer * abi.num_kv_heads + head) * 2 + pair) * abi.num_sinks * row;
                check_same_bytes(left.sinks.get() + sinks, right.sinks.get() + sinks, num_sinks * row, name,
                                 "sinks of layer", layer);
            }
        }
    }
}

void check_same_context(const Model &model, const Rows &left, const Rows &right, int64_t num_rows, const char *name) {
    const float tolerance = strncmp(name, "avx512", 6) == 0 ? kAvx512Tolerance : kTolerance;
    for (int64_t row = 0; row < num_rows; ++row) {
        for (int64_t head = 0; head < model.abi.num_query_heads; ++head) {
            const int64_t offset = row * left.abi.context_row + head * left.abi.context_head;
            for (int64_t channel = offset; channel < offset + model.abi.head_dim; ++channel) {
                const float a = left.abi.context[channel], b = right.abi.context[channel];
                CHECK(fabsf(a - b) <= tolerance, "%s: context of row %lld, query head %lld: %.9g and %.9g", name,
                      static_cast<long long>(row), static_cast<long long>(head), static_cast<double>(a),
                      static_cast<double>(b));
            }
        }
    }
}

}  // namespace edge_vl_driver
