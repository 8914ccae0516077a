// Updates on every device have the bits of kernels::update() in every form: weights, remainders, moments, scales, and
// nothing beside them. The kernels of a GPU run on the fake driver, thread by thread.
#include <gtest/gtest.h>

#include <cstring>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "spillway/device/typed.h"
#include "spillway/kernels/moments.h"
#include "spillway/sys/mapping.h"
#include "tests/device/device_kinds.h"
#include "tests/kernels/fields.h"
#include "tests/needs.h"
#include "tests/sys/failing.h"

namespace spillway::device {
namespace {

using kernels::Moments;
using kernels::UpdateForm;
using kernels::UpdateSpan;
using kernels::UpdateStep;
using kernels::Weights;
using kernels::testing::Fields;

constexpr std::byte kUntouched{0x5a};

/// Around the groups of a thread, the elements of a warp with 16-bit moments (248), and blocks of codes.
constexpr std::size_t kUpdateLengths[] = {0, 1, 7, 8, 9, 247, 248, 249, 255, 256, 257, 500, 511, 2048, 2049};

/// Arrays one behind the other, each at a multiple of 16 bytes and with bytes behind it that nobody may touch.
class Arrays {
 public:
  template <class T>
  Bytes add(const std::vector<T>& array) {
    const auto at = round_up(bytes_.size() + 16, 16);
    bytes_.resize(at, kUntouched);
    const auto from = std::as_bytes(std::span(array));
    bytes_.insert(bytes_.end(), from.begin(), from.end());
    bytes_.resize(bytes_.size() + 16, kUntouched);
    return at;
  }
  [[nodiscard]] const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

/// Where the arrays of Fields lie in memory.
struct Places {
  Bytes weight = 0, remainder = 0, grad = 0;
  std::array<Bytes, 2> moments = {}, scales = {};
};

class DeviceUpdate : public ::testing::TestWithParam<DeviceKind> {
 protected:
  static constexpr Bytes kMemory = 4 * MiB;

  void SetUp() override {
    device_ = GetParam().make();
    const auto reason = device_->cannot_compute();
    SPILLWAY_NEEDS(gpu, reason.empty(), reason);
    device_->register_host(host_.span());
    memory_ = device_->allocate(kMemory);
    stream_ = device_->make_stream();
  }
  void TearDown() override {
    if (!memory_.empty()) device_->synchronise();
    ::unsetenv("FAKE_CUDA_REGISTERS");
  }

  /// What the work leaves of the arrays.
  std::vector<std::byte> result_of(const Arrays& arrays, const Work& work) {
    const auto size = arrays.bytes().size();
    EXPECT_LE(size, kMemory);
    std::memcpy(host_.span().data(), arrays.bytes().data(), size);
    device_->copy(stream_, Direction::to_device, memory_.data(), host_.span().data(), size);
    device_->run(stream_, work);
    device_->copy(stream_, Direction::from_device, host_.span().data(), memory_.data(), size);
    const auto event = device_->make_event();
    device_->record(event, stream_);
    device_->synchronise(event);
    return {host_.span().data(), host_.span().data() + size};
  }

  static Places add(Arrays& arrays, const Fields& fields) {
    Places out{arrays.add(fields.weight), arrays.add(fields.remainder), arrays.add(fields.grad)};
    for (std::size_t m = 0; m < 2; ++m) {
      out.moments[m] = arrays.add(fields.moments[m]);
      out.scales[m] = arrays.add(fields.scales[m]);
    }
    return out;
  }

  /// The span as it lies in memory at `base`; `index`: of its first element.
  static UpdateSpan span_in(std::byte* base, const Places& places, const UpdateForm& form, std::size_t offset,
                            std::size_t n, std::uint64_t index) {
    const auto& weights = traits(form.weights);
    const auto& kept = traits(form.moments);
    UpdateSpan out{.weight = base + places.weight + offset * weights.bytes,
                   .grad = base + places.grad + offset * weights.bytes,
                   .n = n,
                   .index = index};
    if (weights.remainder > 0) out.remainder = base + places.remainder + offset * weights.remainder;
    for (std::size_t m = 0; m < 2; ++m) {
      out.moments[m] = base + places.moments[m] + offset * kept.bytes;
      if (kept.is_scaled) out.scales[m] = reinterpret_cast<float*>(base + places.scales[m]);
    }
    return out;
  }

  /// `offset`: elements before the span, so that it is less aligned; `rarity`: as of Fields.
  void expect_host_bits(const UpdateForm& form, std::size_t n, std::size_t offset, std::uint64_t index,
                        std::uint32_t rarity, const UpdateStep& step) {
    Arrays arrays;
    const auto places = add(arrays, Fields(form, n, offset, rarity));
    auto expected = arrays.bytes();
    kernels::update(form, span_in(expected.data(), places, form, offset, n, index), step);
    const auto found = result_of(arrays, Update{form, span_in(memory_.data(), places, form, offset, n, index), step});
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(found[i], expected[i]) << name_of(form.moments) << " moments of " << name_of(form.weights) << ", " << n
                                       << " elements behind " << offset << ", index " << index << ", byte " << i
                                       << " of arrays with the moments at " << places.moments[0];
    }
  }

  const sys::Mapping host_{kMemory};
  std::unique_ptr<Device> device_;
  std::span<std::byte> memory_;
  Stream stream_ = 0;
};

constexpr UpdateStep kThird{
    .learning_rate = 1e-3, .weight_decay = 0.1, .gradient_scale = 0.7F, .step = 3, .seed = 0x1234567890ABCDEF};

template <class Body>
void for_each_form(const Body& body) {
  for (const auto weights : {Weights::bf16, Weights::fp16, Weights::fp32}) {
    for (const auto moments : {Moments::exact, Moments::bf16, Moments::int8}) body(UpdateForm{weights, moments});
  }
}

TEST_P(DeviceUpdate, HasTheBitsOfTheHostAtEveryLength) {
  for_each_form([&](const auto& form) {
    for (const auto n : kUpdateLengths) expect_host_bits(form, n, 0, 0xFFFFFFF0, 0, kThird);
  });
}

TEST_P(DeviceUpdate, HasThemAtEveryAlignmentAndIndex) {
  for_each_form([&](const auto& form) {
    for (const std::size_t offset : {1, 2, 3, 8}) expect_host_bits(form, 521, offset, 64, 0, kThird);
    for (std::uint64_t lead = 1; lead < 8; ++lead) {
      for (const std::size_t n : {3, 250, 521}) expect_host_bits(form, n, lead, 0xFFFFFFF0 + lead, 0, kThird);
    }
  });
}

TEST_P(DeviceUpdate, HasThemOfNumbersThatAreNotFinite) {
  for_each_form([&](const auto& form) {
    for (const std::uint32_t rarity : {3, 200}) expect_host_bits(form, 2049, 0, 4096, rarity, kThird);
  });
}

TEST_P(DeviceUpdate, HasThemOverManyWarpsAndAtOtherSettings) {
  auto other = kThird;
  other.beta1 = 0.3;
  other.weight_decay = 0;
  other.step = 1;
  other.seed = 7;
  for_each_form([&](const auto& form) { expect_host_bits(form, 70003, 0, std::uint64_t{5} << 40, 0, other); });
}

/// The host's way: gradients widened, weights of 0, and fp32.
TEST_P(DeviceUpdate, OfASubspaceHasTheBitsOfTheHost) {
  for (const auto moments : {Moments::exact, Moments::bf16, Moments::int8}) {
    const UpdateForm form{Weights::fp32, moments};
    for (const auto n : {std::size_t{1}, std::size_t{257}, std::size_t{1024}, std::size_t{70003}}) {
      Arrays arrays;
      const Fields fields(form, n, 0, 0);
      std::vector<std::uint16_t> halves(n);
      static_cast<void>(round_norm(Element::bf16, reinterpret_cast<const float*>(fields.grad.data()),
                                   reinterpret_cast<std::byte*>(halves.data()), n));
      const auto places = add(arrays, fields);
      const auto grad = arrays.add(halves);
      auto expected = arrays.bytes();
      std::vector<float> gradient(n);
      widen(Element::bf16, reinterpret_cast<const std::byte*>(halves.data()), gradient.data(), n);
      auto host = span_in(expected.data(), places, form, 0, n, 1 << 20);
      std::memset(host.weight, 0, n * sizeof(float));
      host.grad = reinterpret_cast<const std::byte*>(gradient.data());
      kernels::update(form, host, kThird);
      auto span = span_in(memory_.data(), places, form, 0, n, 1 << 20);
      span.grad = memory_.data() + grad;
      EXPECT_TRUE(result_of(arrays, UpdateDelta{moments, span, kThird}) == expected) << name_of(moments) << " of " << n;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceUpdate, ::testing::ValuesIn(device_kinds()),
                         [](const auto& test) { return test.param.name; });

TEST(CudaUpdate, OfAnotherOptimizerIsRefused) {
  const auto device = make_fake_cuda();
  const auto stream = device->make_stream();
  const Update lion{.step = {.optimizer = kernels::Optimizer::lion}};
  EXPECT_ERROR(device->run(stream, lion), ErrorCode::internal, "of the optimizers only adamw has kernels for a GPU");
}

}  // namespace
}  // namespace spillway::device
