// The `cuda` device: its errors, over the fake driver, and its declarations, against the real header.
#include "spillway/device/cuda.h"

#include <gtest/gtest.h>

#include <vector>

#include "spillway/base/error.h"
#include "spillway/sys/mapping.h"
#include "tests/device/fake_driver.h"
#include "tests/sys/fake_nodes.h"

namespace spillway::device {
namespace {

std::string refusal(const CudaOptions& options, ErrorCode code) {
  try {
    static_cast<void>(make_cuda(options));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "opened";
  return {};
}

TEST(CudaRefusals, AMissingDriverIsNamed) {
  const auto words = refusal({.library = "libno-such-driver.so.1"}, ErrorCode::unsupported);
  EXPECT_NE(words.find("no NVIDIA driver"), std::string::npos) << words;
  EXPECT_NE(words.find("libno-such-driver.so.1"), std::string::npos) << words;
  EXPECT_NE(words.find("--device cpu"), std::string::npos) << words;
}

TEST(CudaRefusals, ALibraryThatIsNoDriverIsNamedWithWhatItLacks) {
  const auto words = refusal({.library = "libm.so.6"}, ErrorCode::unsupported);
  EXPECT_NE(words.find("cuInit"), std::string::npos) << words;
}

TEST(CudaRefusals, NoGpu) {
  const Setting none("FAKE_CUDA_GPUS", "0");
  const auto words = refusal({.library = kFakeDriver}, ErrorCode::unsupported);
  EXPECT_NE(words.find("no GPU"), std::string::npos) << words;
  EXPECT_NE(words.find("CUDA_VISIBLE_DEVICES"), std::string::npos) << words;
}

TEST(CudaRefusals, AnIndexThatIsNotThere) {
  const auto words = refusal({.index = 7, .library = kFakeDriver}, ErrorCode::bad_input);
  EXPECT_NE(words.find("cuda:7"), std::string::npos) << words;
  EXPECT_NE(words.find("cuda:0 to cuda:1"), std::string::npos) << words;
  EXPECT_NE(refusal({.index = -1, .library = kFakeDriver}, ErrorCode::bad_input).find("cuda:-1"), std::string::npos);
}

TEST(CudaRefusals, MoreThanItsMemory) {
  const auto device = make_cuda({.library = kFakeDriver});
  try {
    device->allocate(1 * GiB);
    FAIL() << "allocated";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::does_not_fit);
    const std::string words = error.what();
    EXPECT_NE(words.find("1.00 GiB are asked"), std::string::npos) << words;
    EXPECT_NE(words.find("32.0 MiB of 64.0 MiB"), std::string::npos) << words;
  }
}

/// Whether the driver knows each piece of the memory already.
std::vector<bool> known_pieces(std::span<std::byte> memory, Bytes piece) {
  const auto other = make_cuda({.library = kFakeDriver});
  std::vector<bool> out;
  for (Bytes at = 0; at < memory.size(); at += piece) out.push_back(!other->register_host(memory.subspan(at, piece)));
  return out;
}

TEST(CudaRegistration, PiecesAreRegisteredInTheOrderAskedForAndARefusalIsOfTheRest) {
  const sys::Mapping memory(8 * MiB);
  const auto device = make_cuda({.library = kFakeDriver, .piece = MiB});
  {
    const Setting most("FAKE_CUDA_REGISTERS_KIB", "3072");
    const std::vector<Bytes> first{5 * MiB + 17, 5 * MiB + 18, 2 * MiB, 100 * MiB};
    EXPECT_FALSE(device->register_host(memory.span(), first));
  }
  EXPECT_NE(device->notice().find("5.0 MiB of 8.0 MiB of host memory could not be registered"), std::string::npos)
      << device->notice();
  EXPECT_EQ(known_pieces(memory.span(), MiB), (std::vector<bool>{true, false, true, false, false, true, false, false}));
  device->unregister_host(memory.span());
  EXPECT_EQ(known_pieces(memory.span(), MiB), std::vector<bool>(8, false));
}

TEST(CudaFacts, GpusAreListedWithTheirPlace) {
  const CudaDriver driver(kFakeDriver);
  testing::FakeNodes machine;
  machine.write("sys/bus/pci/devices/0000:6b:00.0/numa_node", "1\n");
  const auto found = gpus(driver, machine.root());
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].node, std::nullopt);
  EXPECT_EQ(found[1].node, 1);
  EXPECT_EQ(found[1].name, "Fake GPU");
  EXPECT_EQ(found[1].memory, 64 * MiB);
  EXPECT_EQ(found[1].bus, "0000:6b:00.0");  // as sysfs writes it
  EXPECT_EQ(driver.version(), 13000);
}

TEST(CudaWords, AFailedCallIsNamed) {
  const CudaDriver driver(kFakeDriver);
  try {
    driver.check(1, "cuLaunchKernel");
    FAIL() << "went on";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io);
    EXPECT_EQ(std::string(error.what()), "the GPU failed in cuLaunchKernel: CUDA_ERROR_FAKE, as the test asked");
  }
}

}  // namespace
}  // namespace spillway::device
