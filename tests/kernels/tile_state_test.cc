// A thread has one tile configuration, and kernels of different shapes share it: products of bf16
// and of low-bit weights in turn must be what each is alone. Runs with every table; only tiles have
// state.
#include <functional>
#include <thread>

#include "low_bit_matrix.h"

namespace glint::test {
namespace {

constexpr int kRows = 40, kK = 256, kN = 48;

Block packed_rows(const MatmulKernels& kernels, const std::vector<float>& x) {
  Block packed(kernels.packed_bytes((kRows + kRowBlock - 1) / kRowBlock * kRowBlock, kK));
  kernels.pack(x.data(), kK, nullptr, kRows, kK, packed.data());
  return packed;
}

class TileStateTest : public KernelTest {
 protected:
  using Product = std::function<std::vector<float>()>;

  std::vector<float> multiply(const MatmulKernels& kernels, const std::byte* w, std::size_t stride,
                              const PanelSource& source) {
    Block x = packed_rows(kernels, x_), scratch(kernels.scratch_bytes(kK));
    std::vector<float> y(kRows * kN, kNan);
    MatmulArgs args;
    args.x = x.data();
    args.rows = kRows;
    args.k = kK;
    args.w = w;
    args.w_stride = stride;
    args.source = source;
    args.n1 = kN;
    args.y = y.data();
    args.y_stride = kN;
    args.scratch = scratch.data();
    kernels.matmul(args);
    return y;
  }
  Product bf16_product() {
    return [this] { return multiply(table.bf16, bf16_.data(), bf16_.stride(), {}); };
  }
  Product low_bit_product(LowBitMatrix& w) {
    return [this, &w] {
      return multiply(table.int8, w.panels(), w.panel_stride(),
                      {table.panel_int8[index_of(w.type())], nullptr});
    };
  }
  // Attention of bf16 keys uses the same tiles as bf16 products.
  Product attention() {
    return [this] {
      constexpr int kDk = 64, kDv = 32, kKeys = 64;
      std::vector<float> out(kRows * kDv, kNan), sum(kRows), max(kRows);
      const std::vector<std::int32_t> visible(kRows, kKeys);
      Block scratch(table.attend_bf16.scratch_bytes(kRows, kDk, kDv));
      const std::byte* k_page = keys_.data();
      const std::byte* v_page = keys_.data() + 2 * kDk;
      AttendArgs args;
      args.q = queries_.data();
      args.q_stride = queries_.stride() / 2;
      args.rows = kRows;
      args.visible = visible.data();
      args.num_keys = kKeys;
      args.k_pages = &k_page;
      args.v_pages = &v_page;
      args.k_stride = args.v_stride = keys_.stride();
      args.dk = kDk;
      args.dv = kDv;
      args.scale = 0.1f;
      args.max = max.data();
      args.sum = sum.data();
      args.out = out.data();
      args.out_stride = kDv;
      args.scratch = scratch.data();
      table.attend_bf16.attend(args);
      return out;
    };
  }

  Random random_{31};
  std::vector<float> x_ = random_.floats(kRows * kK);
  StoredMatrix bf16_ = StoredMatrix::random(random_, kN, kK, DType::kBf16);
  StoredMatrix queries_ = StoredMatrix::random(random_, kRows, 64, DType::kBf16);
  StoredMatrix keys_ = StoredMatrix::random(random_, 64, 96, DType::kBf16);
  LowBitMatrix group32_{random_, DType::kQ4_K, kN, kK};
  LowBitMatrix group16_{random_, DType::kQ6_K, kN, kK};
};

// A new thread has no configuration yet.
std::vector<float> alone(const std::function<std::vector<float>()>& product) {
  std::vector<float> result;
  std::thread([&] { result = product(); }).join();
  return result;
}

TEST_P(TileStateTest, products_in_turn_have_the_bits_of_each_alone) {
  const Product products[] = {bf16_product(), low_bit_product(group32_), low_bit_product(group16_),
                              attention()};
  std::vector<std::vector<float>> want;
  for (const Product& product : products) want.push_back(alone(product));
  // Every kind after every kind, itself included.
  for (std::size_t before = 0; before < want.size(); ++before) {
    for (std::size_t after = 0; after < want.size(); ++after) {
      EXPECT_EQ(products[before](), want[before]) << before << " before " << after;
      EXPECT_EQ(products[after](), want[after]) << after << " after " << before;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllTables, TileStateTest, testing::ValuesIn(available_isas()),
                         isa_test_name);

}  // namespace
}  // namespace glint::test
