// The command line of a benchmark: `--name VALUE`, `--flag`, and the rest.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

namespace spillway::bench {

/// Each question takes its words away; `rest` is asked last, and finds what nobody knew.
class Arguments {
 public:
  /// `usage` is printed, and the program ended with 2, when the words are not those that are asked for.
  Arguments(int count, char** words, const char* usage) : words_(words + 1, words + count), usage_(usage) {}

  [[nodiscard]] bool flag(const char* name) {
    const auto at = std::ranges::find(words_, name);
    if (at == words_.end()) return false;
    words_.erase(at);
    return true;
  }
  [[nodiscard]] std::string text(const char* name, std::string otherwise) {
    const auto at = std::ranges::find(words_, name);
    if (at == words_.end()) return otherwise;
    if (at + 1 == words_.end()) refuse();
    std::string value = *(at + 1);
    words_.erase(at, at + 2);
    return value;
  }
  [[nodiscard]] double real(const char* name, double otherwise) {
    const std::string value = text(name, "");
    if (value.empty()) return otherwise;
    char* end = nullptr;
    const double number = std::strtod(value.c_str(), &end);
    if (*end != '\0' || number < 0) refuse();
    return number;
  }
  [[nodiscard]] std::uint64_t number(const char* name, std::uint64_t otherwise) {
    return numbers(name, {otherwise}).front();
  }
  /// Of a list with commas.
  [[nodiscard]] std::vector<std::uint64_t> numbers(const char* name, std::vector<std::uint64_t> otherwise) {
    const std::string value = text(name, "");
    if (value.empty()) return otherwise;
    std::vector<std::uint64_t> all;
    for (const char* at = value.c_str();;) {
      char* end = nullptr;
      all.push_back(std::strtoull(at, &end, 10));
      if (end == at || (*end != ',' && *end != '\0')) refuse();
      if (*end == '\0') return all;
      at = end + 1;
    }
  }
  /// The words without a name, of which there must be so many.
  [[nodiscard]] std::vector<std::string> rest(std::size_t least, std::size_t most) const {
    const bool unknown = std::ranges::any_of(words_, [](const std::string& word) { return word.starts_with("--"); });
    if (unknown || words_.size() < least || words_.size() > most) refuse();
    return words_;
  }
  [[noreturn]] void refuse() const {
    std::fprintf(stderr, "%s\n", usage_);
    std::exit(2);
  }

 private:
  std::vector<std::string> words_;
  const char* usage_;
};

/// The exit status of a program that does that; what it throws is printed.
template <class Work>
int finish(const char* program, const Work& work) {
  try {
    work();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", program, error.what());
    return 1;
  }
}

}  // namespace spillway::bench
