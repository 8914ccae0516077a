// What a process of the stress driver tells the one that started it, before or after it has done something: lines on
// its standard output, each written at once. Two processes of a run share that pipe, so that the order of the lines is
// the order in which things happened.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

#include "spillway/base/error.h"
#include "spillway/storage/checksum.h"

namespace spillway::stress {

/// Exit status of a process whose power was cut: the volumes are what the cut has left.
inline constexpr int kPowerCut = 75;

struct Message {
  std::uint64_t process = 0;
  std::string what;  ///< "opened", "commit", "durable", "state", "saving", "saved", "closing", ...
  std::vector<std::string> words;

  [[nodiscard]] std::uint64_t number(std::size_t word) const { return std::stoull(words.at(word)); }
};

template <class... Words>
void tell(std::uint64_t process, const Words&... words) {
  std::string line = std::to_string(process);
  ((line += text(' ', words)), ...);
  for (auto& letter : line) letter = letter == '\n' ? ' ' : letter;
  line.resize(std::min<std::size_t>(line.size(), 1000));  // less than a pipe takes at once
  line += '\n';
  if (::write(STDOUT_FILENO, line.data(), line.size()) < 0) std::perror("the driver is gone");
}

[[nodiscard]] inline Message parse_message(const std::string& line) {
  std::istringstream in(line);
  Message out;
  in >> out.process >> out.what;
  for (std::string word; in >> word;) out.words.push_back(word);
  return out;
}

/// Of all weights, as the masters that they are rounded from.
[[nodiscard]] inline std::uint64_t hash_of(const std::vector<float>& masters) {
  return storage::checksum(std::as_bytes(std::span(masters)), 0);
}

}  // namespace spillway::stress
