#include "spillway/state/digests.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "spillway/base/error.h"
#include "spillway/base/interrupt.h"
#include "spillway/state/file.h"
#include "spillway/state/header.h"

namespace spillway::state {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::size_t kDigits = 16;
constexpr int kFormat = 2;  ///< of the list, which names no tensors in the first one
const fs::path kList = fs::path("spillway") / "files.json";

std::string hex(std::uint64_t value) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out(kDigits, '0');
  for (auto digit = out.rbegin(); digit != out.rend(); ++digit, value >>= 4) *digit = kHex[value & 15];
  return out;
}

[[noreturn]] void refuse_list(const fs::path& file, const std::string& why) {
  throw Error(ErrorCode::bad_input, text(file.string(), ": the digests cannot be read: ", why), 0, file.string());
}

std::vector<std::uint64_t> from_hex(const std::string& digits, const fs::path& file) {
  if (digits.size() % kDigits != 0) refuse_list(file, text("'", digits, "' are not whole digests"));
  std::vector<std::uint64_t> out(digits.size() / kDigits);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const char* const begin = digits.data() + i * kDigits;
    const auto [end, error] = std::from_chars(begin, begin + kDigits, out[i], 16);
    if (error != std::errc() || end != begin + kDigits) refuse_list(file, "a digest has other than hexadecimal digits");
  }
  return out;
}

std::optional<FileDigests> digests_in(const Json& json, const fs::path& file) try {
  if (json.at("piece").get<Bytes>() != kDigestPiece) return std::nullopt;
  FileDigests out{.bytes = json.at("bytes").get<Bytes>()};
  const auto header = from_hex(json.at("header").get<std::string>(), file);
  if (header.size() != 1) refuse_list(file, "the header has not one digest");
  out.header = header.front();
  for (const auto& [name, digits] : json.at("tensors").items()) {
    out.tensors.emplace(name, from_hex(digits.get<std::string>(), file));
  }
  return out;
} catch (const Json::exception& error) {
  refuse_list(file, error.what());
}

Json parse_list(std::string_view json, const fs::path& file) try {
  return Json::parse(json);
} catch (const Json::exception& error) {
  refuse_list(file, error.what());
}

std::string read_whole(const fs::path& path) {
  const auto file = File::open(path);
  std::string out(file.size(), '\0');
  file.read(0, std::as_writable_bytes(std::span(out)));
  return out;
}

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

/// The entry of a file in the list of a directory that holds it; empty where there is none.
std::optional<FileDigests> find_in_list(const fs::path& directory, const std::string& name) {
  const auto list = directory / kList;
  if (!is_file(list)) return std::nullopt;
  const auto json = parse_list(read_whole(list), list);
  if (!json.is_object() || json.value("format", Json()) != Json(kFormat)) return std::nullopt;
  const auto files = json.find("files");
  if (files == json.end() || !files->is_object()) refuse_list(list, "it names no files");
  const auto entry = files->find(name);
  if (entry == files->end()) return std::nullopt;
  return digests_in(*entry, list);
}

/// An open file, and its header as it is in the file.
struct OpenFile {
  explicit OpenFile(const fs::path& path) : file(File::open(path)) {
    std::uint64_t length = 0;
    if (file.size() < kLengthBytes) return;
    file.read(0, std::as_writable_bytes(std::span(&length, 1)));
    if (length > std::min(kMaxHeader, file.size() - kLengthBytes)) return;
    header.resize(kLengthBytes + length);
    file.read(0, std::as_writable_bytes(std::span(header)));
  }

  [[nodiscard]] std::uint64_t digest() const { return storage::checksum(std::as_bytes(std::span(header)), 0); }
  [[nodiscard]] std::vector<HeaderTensor> tensors() const {
    return parse_header(std::string_view(header).substr(std::min<Bytes>(header.size(), kLengthBytes)),
                        file.size() - header.size(), file.path().string());
  }
  /// Of a piece, which begins at `begin` in the file.
  [[nodiscard]] std::uint64_t digest(Bytes begin, Bytes bytes, std::vector<std::byte>& buffer) const {
    throw_if_interrupted();
    buffer.resize(bytes);
    file.read(begin, buffer);
    return storage::checksum(buffer, 0);
  }

  File file;
  std::string header;
};

/// Which pieces of a file are compared: each, or so many that lie evenly in it.
class Choice {
 public:
  Choice(const FileDigests& digests, std::size_t most) {
    std::size_t all = 0;
    for (const auto& [name, pieces] : digests.tensors) all += pieces.size();
    every_ = most == 0 ? all + 1 : std::max<std::size_t>(1, ceil_div(all, most));
  }
  [[nodiscard]] bool take() { return passed_++ % every_ == every_ / 2; }

 private:
  std::size_t every_ = 1, passed_ = 0;
};

}  // namespace

void PieceDigests::add(Bytes at, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto piece = static_cast<std::size_t>(at / kDigestPiece);
    const auto part = bytes.first(std::min<std::size_t>(bytes.size(), (piece + 1) * kDigestPiece - at));
    add_to_piece(piece, at, part);
    at += part.size();
    bytes = bytes.subspan(part.size());
  }
}

void PieceDigests::add_to_piece(std::size_t piece, Bytes at, std::span<const std::byte> bytes) {
  const Bytes begin = piece * kDigestPiece, end = std::min(size_, begin + kDigestPiece);
  if (at == begin && at + bytes.size() == end) {
    digests_[piece] = storage::checksum(bytes, 0);
    return;
  }
  if (at == begin) {
    running_ = std::make_unique<storage::RunningChecksum>();
  } else if (!running_ || at != next_) {
    return;
  }
  running_->add(bytes);
  next_ = at + bytes.size();
  if (next_ != end) return;
  digests_[piece] = running_->value();
  running_.reset();
}

std::vector<std::uint64_t> PieceDigests::finish(
    const std::function<void(Bytes at, std::span<std::byte> out)>& read) const {
  std::vector<std::uint64_t> out;
  std::vector<std::byte> buffer;
  for (std::size_t piece = 0; piece < digests_.size(); ++piece) {
    if (!digests_[piece]) {
      const Bytes begin = piece * kDigestPiece;
      buffer.resize(std::min(size_ - begin, kDigestPiece));
      read(begin, buffer);
    }
    out.push_back(digests_[piece] ? *digests_[piece] : storage::checksum(buffer, 0));
  }
  return out;
}

std::string to_json(const FileDigests& digests) {
  // Neither a Json of objects, whose destructor allocates and so ends the process where memory is short, nor a stream,
  // which drops what it has no memory for.
  std::string out = "{\"bytes\":" + std::to_string(digests.bytes) + ",\"header\":\"" + hex(digests.header) +
                    "\",\"piece\":" + std::to_string(kDigestPiece) + ",\"tensors\":{";
  for (const auto& [name, pieces] : digests.tensors) {
    if (out.back() != '{') out += ',';
    out += Json(name).dump() + ":\"";
    for (const auto digest : pieces) out += hex(digest);
    out += '"';
  }
  return out + "}}";
}

std::optional<FileDigests> parse_digests(std::string_view json, const fs::path& file) {
  return digests_in(parse_list(json, file), file);
}

fs::path sheet_of(const fs::path& file) {
  return file.parent_path() / text(".", file.filename().string(), ".digests");
}

std::optional<FileDigests> find_digests(const fs::path& file) {
  if (const auto sheet = sheet_of(file); is_file(sheet)) return parse_digests(read_whole(sheet), sheet);
  auto directory = fs::absolute(file).lexically_normal().parent_path();
  auto name = file.filename().string();
  for (int up = 0; up < 3; ++up) {
    if (auto found = find_in_list(directory, name)) return found;
    name = directory.filename().string() + "/" + name;
    directory = directory.parent_path();
  }
  return std::nullopt;
}

FileDigests digests_of(const fs::path& path) {
  const OpenFile open(path);
  FileDigests out{.bytes = open.file.size(), .header = open.digest()};
  std::vector<std::byte> buffer;
  for (const auto& tensor : open.tensors()) {
    auto& digests = out.tensors[tensor.name];
    for (Bytes at = tensor.begin; at < tensor.end; at += kDigestPiece) {
      const auto bytes = std::min(tensor.end - at, kDigestPiece);
      digests.push_back(open.digest(open.header.size() + at, bytes, buffer));
    }
  }
  return out;
}

std::vector<DamagedRange> find_damage(const fs::path& path, const FileDigests& digests, std::size_t most_pieces) {
  const OpenFile open(path);
  if (open.file.size() != digests.bytes) return {{"", open.file.size(), digests.bytes}};
  if (open.digest() != digests.header) return {{"", 0, std::max<Bytes>(open.header.size(), kLengthBytes)}};
  std::vector<DamagedRange> out;
  std::vector<std::byte> buffer;
  Choice choice(digests, most_pieces);
  for (const auto& tensor : open.tensors()) {
    const auto entry = digests.tensors.find(tensor.name);
    const Bytes first = open.header.size() + tensor.begin, end = open.header.size() + tensor.end;
    const auto pieces = digest_pieces(end - first);
    if (entry == digests.tensors.end() || entry->second.size() != pieces) {
      out.push_back({tensor.name, first, end});
      continue;
    }
    for (std::size_t piece = 0; piece < pieces; ++piece) {
      if (!choice.take()) continue;
      const Bytes begin = first + piece * kDigestPiece, bytes = std::min(end - begin, kDigestPiece);
      if (open.digest(begin, bytes, buffer) == entry->second[piece]) continue;
      const bool goes_on = !out.empty() && out.back().tensor == tensor.name && out.back().end == begin;
      if (!goes_on) out.push_back({tensor.name, begin, begin});
      out.back().end = begin + bytes;
    }
  }
  return out;
}

void refuse_damaged(const fs::path& file, const DamagedRange& range) {
  const auto where = range.tensor.empty() ? "its header, or its length" : text("tensor ", range.tensor);
  throw Error(ErrorCode::bad_input,
              text(file.string(), " is damaged, or was changed, since it was saved: ", where, ", bytes ", range.begin,
                   " to ", range.end, ", is not what was written. Use another checkpoint; or, if the file was changed ",
                   "deliberately, remove ", kList.string(), " of its checkpoint to load it all the same"),
              0, file.string());
}

}  // namespace spillway::state
