#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "spillway/base/error.h"
#include "spillway/state/coding.h"
#include "spillway/state/digests.h"
#include "spillway/state/dtype.h"
#include "spillway/state/file.h"
#include "spillway/state/header.h"
#include "spillway/state/safetensors.h"
#include "spillway/state/shards.h"

namespace spillway::state {
namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "safetensors is little-endian");

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr Bytes kConvertGranule = 4 * MiB;

[[noreturn]] void refuse(const fs::path& file, const std::string& what) {
  throw Error(ErrorCode::bad_input, text(file.string(), what), 0, file.string());
}

/// Throws when `place` is not there or cannot be looked at.
void check_reachable(const fs::path& place) {
  std::error_code error;
  const auto status = fs::status(place, error);
  if (status.type() == fs::file_type::not_found) refuse(place, ": there is no such file or directory");
  if (error) {
    throw Error(ErrorCode::io, text("cannot look at ", place.string(), ": ", error.message()), error.value(),
                place.string());
  }
}

bool is_there(const fs::path& file) {
  std::error_code ignored;
  return fs::exists(file, ignored);
}

/// "config.json, pytorch_model.bin, and 3 more".
std::string listing(const std::set<std::string>& names) {
  constexpr std::size_t kShown = 8;
  std::string out = names.empty() ? "nothing" : "";
  std::size_t shown = 0;
  for (const auto& name : names) {
    if (shown == kShown) return text(out, ", and ", names.size() - kShown, " more");
    out += (shown++ == 0 ? "" : ", ") + name;
  }
  return out;
}

[[noreturn]] void refuse_empty(const fs::path& directory) {
  const auto names = names_in(directory);
  const bool has_bin = std::any_of(names.begin(), names.end(), [](const auto& name) { return name.ends_with(".bin"); });
  refuse(directory, text(" has neither ", kSingle, " nor ", kIndex, "; it holds ", listing(names),
                         has_bin ? ". Convert the .bin weights: load them with transformers and save_pretrained them"
                                 : ". Name the directory of a model, or one .safetensors file"));
}

std::vector<HeaderTensor> read_header(const File& file, Bytes& data, const std::optional<FileDigests>& digests) {
  if (digests && file.size() != digests->bytes) refuse_damaged(file.path(), {"", file.size(), digests->bytes});
  if (file.size() < kLengthBytes) {
    refuse(file.path(), text(" holds ", file.size(), " bytes: too short for a safetensors file"));
  }
  std::array<std::uint64_t, 1> length{};
  file.read(0, std::as_writable_bytes(std::span(length)));
  if (length[0] > kMaxHeader) {
    refuse(file.path(), text(": a header of ", length[0], " bytes, more than the ", kMaxHeader,
                             " that safetensors allows: not a safetensors file, or damaged"));
  }
  if (length[0] > file.size() - kLengthBytes) {
    refuse(file.path(), text(": a header of ", length[0], " bytes in a file of ", file.size(), ": it is truncated"));
  }
  std::string json(length[0], '\0');
  file.read(kLengthBytes, std::as_writable_bytes(std::span(json)));
  data = kLengthBytes + json.size();
  if (digests) {
    storage::RunningChecksum header;
    header.add(std::as_bytes(std::span(length)));
    header.add(std::as_bytes(std::span(json)));
    if (header.value() != digests->header) refuse_damaged(file.path(), {"", 0, data});
  }
  return parse_header(json, file.size() - data, file.path().string());
}

void check_index(const WeightMap& index, const std::map<std::string, StoredTensor>& tensors,
                 const std::vector<fs::path>& files, const fs::path& index_file) {
  for (const auto& [name, shard] : index) {
    const auto found = tensors.find(name);
    if (found == tensors.end() || files[found->second.file].filename() != shard) {
      refuse(index_file, text(" says that tensor ", name, " is in ", shard, ", which does not have it"));
    }
  }
}

}  // namespace

struct SafetensorsReader::Files {
  std::vector<File> open;
  std::optional<CodedTensors> coded;
  std::vector<std::optional<FileDigests>> digests;

  void add(const fs::path& path, std::map<std::string, StoredTensor>& tensors) {
    auto file = File::open(path);
    const auto& known = digests.emplace_back(find_digests(path));
    Bytes data = 0;
    for (auto& entry : read_header(file, data, known)) {
      StoredTensor tensor{entry.name,          entry.dtype, std::move(entry.shape), entry.elements,
                          entry.element_bytes, open.size(), data + entry.begin};
      const auto [at, fresh] = tensors.emplace(std::move(entry.name), std::move(tensor));
      if (!fresh) refuse(path, text(": tensor ", at->first, " is in ", open[at->second.file].path().string(), ", too"));
    }
    open.push_back(std::move(file));
  }

  /// Bytes [at, at + out.size()) of a tensor. Each piece that has a digest is verified as a whole before any byte of it
  /// is returned.
  void read(const StoredTensor& tensor, Bytes at, std::span<std::byte> out) {
    const auto& file = open[tensor.file];
    const auto* pieces = find_pieces(tensor);
    if (pieces == nullptr) return file.read(tensor.offset + at, out);
    const Bytes size = tensor.elements * tensor.element_bytes;
    while (!out.empty()) {
      const Piece piece(at / kDigestPiece, size);
      const auto part = out.first(std::min<std::size_t>(out.size(), piece.end - at));
      if (part.size() == piece.end - piece.begin) {
        file.read(tensor.offset + at, part);
        verify(tensor, piece, part, *pieces);
      } else {
        copy_part(tensor, piece, at, part, *pieces);
      }
      at += part.size();
      out = out.subspan(part.size());
    }
  }

 private:
  struct Piece {
    Piece(Bytes index, Bytes size)
        : number(index), begin(index * kDigestPiece), end(std::min(size, begin + kDigestPiece)) {}
    Bytes number, begin, end;  ///< in the tensor
  };

  /// Null where there are no digests of the tensor.
  [[nodiscard]] const std::vector<std::uint64_t>* find_pieces(const StoredTensor& tensor) const {
    const auto& known = digests[tensor.file];
    if (!known) return nullptr;
    const auto found = known->tensors.find(tensor.name);
    const Bytes size = tensor.elements * tensor.element_bytes;
    if (found == known->tensors.end() || found->second.size() != digest_pieces(size)) {
      refuse_damaged(open[tensor.file].path(), {tensor.name, tensor.offset, tensor.offset + size});
    }
    return &found->second;
  }

  void verify(const StoredTensor& tensor, const Piece& piece, std::span<const std::byte> bytes,
              const std::vector<std::uint64_t>& pieces) const {
    if (storage::checksum(bytes, 0) == pieces[piece.number]) return;
    refuse_damaged(open[tensor.file].path(), {tensor.name, tensor.offset + piece.begin, tensor.offset + piece.end});
  }

  /// Of a piece that is kept for the next part of it.
  void copy_part(const StoredTensor& tensor, const Piece& piece, Bytes at, std::span<std::byte> out,
                 const std::vector<std::uint64_t>& pieces) {
    const std::lock_guard lock(mutex_);
    const std::pair place(tensor.file, tensor.offset + piece.begin);
    if (kept_place_ != place) {
      kept_place_.reset();
      kept_.resize(piece.end - piece.begin);
      open[tensor.file].read(place.second, kept_);
      verify(tensor, piece, kept_, pieces);
      kept_place_ = place;
    }
    std::memcpy(out.data(), kept_.data() + (at - piece.begin), out.size());
  }

  std::mutex mutex_;
  std::optional<std::pair<std::size_t, Bytes>> kept_place_;  ///< file, and offset in it, of `kept_`
  std::vector<std::byte> kept_;                              ///< a verified piece
};

SafetensorsReader::SafetensorsReader(const fs::path& directory_or_file) : open_(std::make_unique<Files>()) {
  const auto& place = directory_or_file;
  check_reachable(place);
  if (!fs::is_directory(place)) {
    files_ = {place};
    open_->add(place, tensors_);
  } else if (is_there(place / kSingle)) {
    files_ = {place / kSingle};
    open_->add(files_.front(), tensors_);
  } else if (is_there(place / kIndex)) {
    const auto index = read_index(place / kIndex);
    std::set<std::string> shards;
    for (const auto& [tensor, shard] : index) {
      if (!shards.insert(shard).second) continue;
      if (!is_there(place / shard)) {
        refuse(place / kIndex, text(" names the shard ", shard, " (of tensor ", tensor, "), which is missing"));
      }
    }
    for (const auto& shard : shards) {
      files_.push_back(place / shard);
      open_->add(files_.back(), tensors_);
    }
    check_index(index, tensors_, files_, place / kIndex);
  } else {
    refuse_empty(place);
  }
  decode_weights(place);
}

void SafetensorsReader::decode_weights(const fs::path& place) {
  const auto coding = fs::is_directory(place) ? find_coding(place) : std::nullopt;
  if (!coding) return;
  open_->coded.emplace(
      *coding, tensors_, files_,
      [open = open_.get()](const StoredTensor& tensor, std::uint64_t first, std::uint64_t count, std::byte* out) {
        const auto width = tensor.element_bytes;
        open->read(tensor, first * width, {out, static_cast<std::size_t>(count * width)});
      });
}

SafetensorsReader::~SafetensorsReader() = default;
SafetensorsReader::SafetensorsReader(SafetensorsReader&&) noexcept = default;
SafetensorsReader& SafetensorsReader::operator=(SafetensorsReader&&) noexcept = default;

const StoredTensor* SafetensorsReader::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

bool SafetensorsReader::is_decoded(const StoredTensor& tensor) const {
  return open_->coded && open_->coded->contains(tensor.name);
}

void SafetensorsReader::read(const StoredTensor& tensor, std::uint64_t first, std::uint64_t count,
                             std::byte* out) const {
  if (first > tensor.elements || count > tensor.elements - first || tensor.file >= files_.size()) {
    throw Error(ErrorCode::internal, text("elements ", first, " to ", first, " + ", count, " of tensor ", tensor.name,
                                          ", which has ", tensor.elements));
  }
  if (is_decoded(tensor)) {
    return open_->coded->read(tensor.name, first, count, reinterpret_cast<float*>(out));
  }
  open_->read(tensor, first * tensor.element_bytes, {out, static_cast<std::size_t>(count * tensor.element_bytes)});
}

void SafetensorsReader::read_fp32(const StoredTensor& tensor, std::uint64_t first, std::uint64_t count,
                                  float* out) const {
  if (!converts_to_fp32(tensor.dtype)) {
    throw Error(ErrorCode::bad_input,
                text("tensor ", tensor.name, " is ", tensor.dtype, ", but ", one_of(kToFp32), " is needed"));
  }
  if (tensor.dtype == "F32") return read(tensor, first, count, reinterpret_cast<std::byte*>(out));
  const std::uint64_t most = std::min(count, kConvertGranule / tensor.element_bytes);
  std::vector<std::byte> raw(most * tensor.element_bytes);
  while (count > 0) {
    const auto some = std::min(count, most);
    read(tensor, first, some, raw.data());
    to_fp32(tensor.dtype, raw.data(), some, out);
    first += some;
    count -= some;
    out += some;
  }
}

}  // namespace spillway::state
