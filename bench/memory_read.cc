// Reads memory at a given rate until its standard input ends: what checksums ask of the memory beside a drive, and
// nothing else. `bench/storage_vs_fio.py` runs it beside fio.
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

#include "bench/arguments.h"
#include "bench/noise.h"
#include "spillway/base/bytes.h"
#include "spillway/storage/checksum.h"

namespace {

using namespace spillway;  // NOLINT

constexpr Bytes kPart = MiB;
/// As much as the path benchmark's transfers.
constexpr Bytes kMemory = 32 * MiB;

bool input_ended() {
  char byte = 0;
  return ::read(STDIN_FILENO, &byte, 1) == 0;
}

void read_on(double rate) {
  std::vector<std::byte> memory(kMemory);
  bench::fill_with_noise(memory);
  ::fcntl(STDIN_FILENO, F_SETFL, O_NONBLOCK);
  using Seconds = std::chrono::duration<double>;
  const auto began = std::chrono::steady_clock::now();
  std::uint64_t sum = 0;
  Bytes done = 0;
  while (!input_ended()) {
    sum ^= storage::checksum(std::span(memory).subspan(done % kMemory, kPart), done);
    done += kPart;
    const Seconds ahead = Seconds(static_cast<double>(done) / rate) - (std::chrono::steady_clock::now() - began);
    if (ahead.count() > 0) std::this_thread::sleep_for(ahead);
  }
  const Seconds took = std::chrono::steady_clock::now() - began;
  std::printf("read %6.3f GB/s of memory (%llx)\n", static_cast<double>(done) / took.count() / 1e9,
              static_cast<unsigned long long>(sum));
}

}  // namespace

int main(int count, char** words) {
  return bench::finish("memory_read", [&] {
    const bench::Arguments arguments(count, words, "memory_read BYTES_PER_SECOND");
    const double rate = std::atof(arguments.rest(1, 1).front().c_str());
    if (rate <= 0) arguments.refuse();
    read_on(rate);
  });
}
