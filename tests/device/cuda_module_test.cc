// The kernels in both forms: what was built in, which form a driver takes, and what is said when it takes none.
#include "spillway/device/cuda_module.h"

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <string_view>

#include "spillway/base/error.h"
#include "tests/device/fake_driver.h"
#include "tests/needs.h"
#include "tests/sys/failing.h"

namespace spillway::device {
namespace {

constexpr std::byte kMachineCode[1] = {};
constexpr char kPtx[] = "//\n.version 7.0\n.target sm_80\n";

CudaKernels both_forms() {
  return {.machine_code = kMachineCode, .ptx = std::as_bytes(std::span(kPtx))};
}

/// Of a driver for this CUDA; 13000 is 13.0.
std::unique_ptr<Device> opened(const char* version, const CudaKernels& kernels) {
  const Setting age("FAKE_CUDA_VERSION", version);
  return make_cuda({.library = kFakeDriver, .kernels = kernels});
}

TEST(CudaModule, ANewDriverTakesMachineCode) {
  const auto device = opened("13000", both_forms());
  EXPECT_EQ(device->cannot_compute(), "");
  EXPECT_EQ(device->computes_with(), "machine code");
}

TEST(CudaModule, AnOldDriverCompilesText) {
  for (const auto* version : {"11000", "11040", "12020"}) {
    const auto device = opened(version, both_forms());
    EXPECT_EQ(device->cannot_compute(), "");
    EXPECT_EQ(device->computes_with(),
              "PTX that the driver has compiled, which refuses the machine code: CUDA_ERROR_NO_BINARY_FOR_GPU, as the "
              "test asked");
    const auto stream = device->make_stream();
    const auto memory = device->allocate(4096);
    auto* const sums = reinterpret_cast<float*>(memory.data());
    EXPECT_NO_THROW(device->run(stream, Sum{Element::fp32, memory.data() + 2048, sums, 16, true}));
    device->synchronise();
  }
}

TEST(CudaModule, ADriverThatTakesNeitherIsQuotedTwice) {
  const auto device = opened("10020", both_forms());
  const auto words = device->cannot_compute();
  EXPECT_EQ(words,
            "cuda:0 (Fake GPU): the driver (for CUDA 10.2) refuses the kernels of this build; as machine code: "
            "CUDA_ERROR_NO_BINARY_FOR_GPU, as the test asked; as PTX: CUDA_ERROR_UNSUPPORTED_PTX_VERSION, as the test "
            "asked (ptxas fatal   : Unsupported .version). They need a driver for CUDA 11.0 or newer and a GPU of "
            "compute capability 8.0 or higher; else use --device cpu");
  EXPECT_EQ(device->computes_with(), "");
  EXPECT_ERROR(device->run(0, Sum{}), ErrorCode::unsupported, words);
}

TEST(CudaModule, OneFormIsEnough) {
  EXPECT_EQ(opened("13000", {.machine_code = kMachineCode})->cannot_compute(), "");
  EXPECT_EQ(opened("11040", {.ptx = both_forms().ptx})->cannot_compute(), "");
  EXPECT_NE(opened("11040", {.machine_code = kMachineCode})->cannot_compute().find("as PTX: this build has none"),
            std::string::npos);
}

TEST(CudaModule, ABuildWithoutKernelsSaysWhy) {
  const auto device = opened("13000", {.missing = "the test has none"});
  EXPECT_EQ(device->cannot_compute(),
            "cuda:0 (Fake GPU): this build of Spillway has no kernels for a GPU, because the test has none; build "
            "it where CUDA's compiler (nvcc) works, or use --device cpu");
  EXPECT_THROW(device->run(0, Sum{}), Error);
}

std::string_view text_of(std::span<const std::byte> image) {
  return {reinterpret_cast<const char*>(image.data()), image.size()};
}

TEST(CudaKernels, ThoseBuiltInHaveEveryNameInBothForms) {
  const auto kernels = cuda_kernels();
  ASSERT_EQ(kernels.empty(), !kernels.missing.empty());
  SPILLWAY_NEEDS(nvcc, !kernels.empty(), "there are no kernels for a GPU to look at, because " << kernels.missing);
  EXPECT_EQ(kernel_names().size(), 63U);
  for (const auto& name : kernel_names()) {
    EXPECT_NE(text_of(kernels.machine_code).find(name), std::string_view::npos) << name;
    EXPECT_NE(text_of(kernels.ptx).find(".entry " + name + "("), std::string_view::npos) << name;
  }
  EXPECT_EQ(text_of(kernels.ptx).find('\0'), kernels.ptx.size() - 1) << "a driver reads up to the first 0";
  EXPECT_NE(text_of(kernels.ptx).find("\n.version 7.0\n.target sm_80\n"), std::string_view::npos);
}

/// Kernels that take elements one by one, since an element's place depends on its value or its row; and those that
/// write a number for each tile, row or token alone.
constexpr std::string_view kOneByOne[] = {"convert", "gather",     "compress",       "apply",
                                          "sample",  "loss_stats", "rms_norm_weight"};
constexpr std::string_view kLoadsAlone[] = {"squares", "rms_norm_scales"};

bool is_of(std::span<const std::string_view> kernels, std::string_view name) {
  return std::ranges::any_of(kernels, [&](auto each) { return name.starts_with("spillway_" + std::string(each)); });
}

TEST(CudaKernels, LoadAndStoreSixteenBytesAtOnceFromRegistersAlone) {
  const auto kernels = cuda_kernels();
  SPILLWAY_NEEDS(nvcc, !kernels.ptx.empty(), "there is no PTX to look at, because " << kernels.missing);
  const auto text = text_of(kernels.ptx);
  int seen = 0;
  for (const auto& name : kernel_names()) {
    if (is_of(kOneByOne, name)) continue;
    const auto begin = text.find(".entry " + name + "(");
    const auto body = text.substr(begin, text.find("\n}\n", begin) - begin);
    EXPECT_NE(body.find("ld.global.v4."), std::string_view::npos) << name;
    const bool stores =
        body.find("st.global.v4.") != std::string_view::npos || body.find("st.global.wb.v4.") != std::string_view::npos;
    EXPECT_NE(stores, is_of(kLoadsAlone, name)) << name;
    EXPECT_EQ(body.find("local_depot"), std::string_view::npos) << name << " has an array that is in no register";
    ++seen;
  }
  EXPECT_EQ(seen, 45);
}

}  // namespace
}  // namespace spillway::device
