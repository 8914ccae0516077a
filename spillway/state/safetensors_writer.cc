#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <utility>

#include "spillway/base/error.h"
#include "spillway/state/coverage.h"
#include "spillway/state/digests.h"
#include "spillway/state/dtype.h"
#include "spillway/state/file.h"
#include "spillway/state/header.h"
#include "spillway/state/safetensors.h"
#include "spillway/state/shards.h"

namespace spillway::state {
namespace {

namespace fs = std::filesystem;

/// A file under a temporary name, removed unless it got its own.
class PartialFile {
 public:
  PartialFile(fs::path path, Bytes size, unsigned mode)
      : path_(std::move(path)), partial_(path_.string() + ".partial"), file_(File::create(partial_, size, mode)) {}
  ~PartialFile() {
    std::error_code ignored;
    if (!named_) fs::remove(partial_, ignored);
  }
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  [[nodiscard]] File& file() noexcept { return file_; }

  void give_name() {
    std::error_code error;
    fs::rename(partial_, path_, error);
    if (error) {
      throw Error(ErrorCode::io,
                  text("cannot rename ", partial_.string(), " to ", path_.string(), ": ", error.message()),
                  error.value(), path_.string());
    }
    named_ = true;
  }

 private:
  fs::path path_;
  fs::path partial_;
  File file_;
  bool named_ = false;
};

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::bad_input, what);
}

bool is_utf8(const std::string& name) {
  try {
    return !nlohmann::json(name).dump().empty();
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

HeaderTensor describe(const TensorOut& out) {
  if (out.name.empty() || out.name == "__metadata__" || !is_utf8(out.name)) {
    refuse(text("'", out.name, "' cannot be the name of a tensor"));
  }
  const auto* type = find_dtype(out.dtype);
  if (type == nullptr) refuse(text("tensor ", out.name, " has the unknown dtype ", out.dtype));
  HeaderTensor tensor{.name = out.name, .dtype = out.dtype, .shape = out.shape, .elements = 1};
  tensor.element_bytes = type->bytes;
  Bytes bytes = type->bytes;
  for (const auto size : out.shape) {
    if (size < 0) refuse(text("tensor ", out.name, " has a dimension of ", size));
    if (__builtin_mul_overflow(bytes, static_cast<Bytes>(size), &bytes)) {
      refuse(text("tensor ", out.name, " has more bytes than a file can hold"));
    }
  }
  tensor.elements = bytes / type->bytes;
  tensor.end = bytes;
  return tensor;
}

std::vector<HeaderTensor> describe(const std::vector<TensorOut>& list) {
  if (list.empty()) refuse("a checkpoint of no tensors");
  std::set<std::string> names;
  std::vector<HeaderTensor> tensors;
  Bytes total = 0;
  for (const auto& out : list) {
    if (!names.insert(out.name).second) refuse(text("tensor ", out.name, " is to be written twice"));
    tensors.push_back(describe(out));
    if (__builtin_add_overflow(total, tensors.back().end, &total)) refuse("more bytes than a file system can hold");
  }
  return tensors;
}

/// Order within a file: wide types first, so that every tensor is aligned to its element; then by name.
void sort_like_reference(std::vector<std::size_t>& shard, const std::vector<HeaderTensor>& tensors) {
  std::sort(shard.begin(), shard.end(), [&](std::size_t a, std::size_t b) {
    const int rank_a = find_dtype(tensors[a].dtype)->rank;
    const int rank_b = find_dtype(tensors[b].dtype)->rank;
    return rank_a != rank_b ? rank_a > rank_b : tensors[a].name < tensors[b].name;
  });
}

}  // namespace

struct SafetensorsWriter::Impl {
  struct Slot {
    HeaderTensor tensor;
    std::size_t file = 0;  ///< index into files
    Bytes offset = 0;      ///< of its first byte in that file
    Coverage written = {};
    PieceDigests digests{0};
  };

  fs::path directory;
  std::string base;
  unsigned mode = kPublic;  ///< permissions of the files
  std::vector<Slot> slots;
  std::vector<std::string> names;  ///< of the files
  std::vector<std::unique_ptr<PartialFile>> files;
  std::vector<FileDigests> digests;  ///< of the shards, which come first among the files
  bool writable = true;              ///< neither finished nor failed

  void add_shard(std::vector<std::size_t> shard, std::vector<HeaderTensor>& tensors, const std::string& name) {
    sort_like_reference(shard, tensors);
    std::vector<HeaderTensor> ordered;
    Bytes at = 0;
    for (const auto i : shard) {
      tensors[i].begin = at;
      at = tensors[i].end += at;
      ordered.push_back(tensors[i]);
    }
    const auto header = serialize_header(ordered);
    files.push_back(std::make_unique<PartialFile>(directory / name, header.size() + at, mode));
    files.back()->file().write(0, std::as_bytes(std::span(header)));
    digests.push_back({header.size() + at, storage::checksum(std::as_bytes(std::span(header)), 0)});
    for (const auto i : shard) {
      slots[i] = {.tensor = tensors[i],
                  .file = files.size() - 1,
                  .offset = header.size() + tensors[i].begin,
                  .digests = PieceDigests(tensors[i].end - tensors[i].begin)};
    }
    names.push_back(name);
  }

  void check_writable() const {
    if (!writable) throw Error(ErrorCode::internal, "a checkpoint that is finished, or failed, takes no more calls");
  }

  void check_complete() const {
    for (const auto& slot : slots) {
      const Bytes size = slot.tensor.end - slot.tensor.begin;
      const Bytes gap = slot.written.first_gap(size);
      if (gap != size) {
        throw Error(ErrorCode::internal, text("tensor ", slot.tensor.name, " is not complete: byte ", gap, " of ", size,
                                              " was never written"));
      }
    }
  }

  void write_index() {
    WeightMap map;
    Bytes total = 0;
    std::uint64_t parameters = 0;
    for (const auto& slot : slots) {
      map.emplace(slot.tensor.name, names[slot.file]);
      total += slot.tensor.end - slot.tensor.begin;
      parameters += slot.tensor.elements;
    }
    const auto index = serialize_index(map, parameters, total);
    names.push_back(base + ".safetensors.index.json");
    files.push_back(std::make_unique<PartialFile>(directory / names.back(), index.size(), mode));
    files.back()->file().write(0, std::as_bytes(std::span(index)));
  }

  /// After the last write and before finish() of the files, some of whose bytes may have to be read again.
  void complete_digests() {
    for (const auto& slot : slots) {
      const auto& file = files[slot.file]->file();
      digests[slot.file].tensors[slot.tensor.name] =
          slot.digests.finish([&](Bytes at, std::span<std::byte> out) { file.read(slot.offset + at, out); });
    }
  }

  /// The digests of an older file are gone before its name is another's.
  void remove_sheets() const {
    for (const auto& name : names) {
      std::error_code ignored;
      fs::remove(sheet_of(directory / name), ignored);
    }
  }

  void write_sheets() const {
    for (std::size_t i = 0; i < digests.size(); ++i) {
      const auto content = to_json(digests[i]);
      PartialFile sheet(sheet_of(directory / names[i]), content.size(), mode);
      sheet.file().write(0, std::as_bytes(std::span(content)));
      sheet.file().finish();
      sheet.give_name();
    }
  }

  /// Between shards of two checkpoints no index says that they are one.
  void remove_index() const {
    const auto index = directory / (base + ".safetensors.index.json");
    std::error_code error;
    if (files.size() > 1 && fs::remove(index, error)) sync_directory(directory);
    if (!error) return;
    throw Error(ErrorCode::io, text("cannot remove ", index.string(), ": ", error.message()), error.value(),
                index.string());
  }

  /// The index, which comes last, has its name no sooner than the shards have theirs, also after a power cut.
  void give_names() {
    for (auto& file : files) {
      if (files.size() > 1 && &file == &files.back()) sync_directory(directory);
      file->give_name();
    }
  }

  /// Files of an earlier checkpoint that this one does not replace would be taken for part of it.
  void remove_stale() const try {
    const std::set<std::string> ours(names.begin(), names.end());
    std::vector<fs::path> stale;
    for (const auto& name : names_in(directory)) {
      if (is_checkpoint_file(name, base) && !ours.contains(name)) stale.push_back(directory / name);
    }
    for (const auto& path : stale) {
      fs::remove(sheet_of(path));
      fs::remove(path);
    }
  } catch (const fs::filesystem_error& error) {
    throw Error(ErrorCode::io, text("cannot remove an older checkpoint: ", error.what()), error.code().value(),
                directory.string());
  }
};

SafetensorsWriter::SafetensorsWriter(const fs::path& directory, const std::string& base, std::vector<TensorOut> list,
                                     Bytes max_shard, unsigned mode)
    : impl_(std::make_unique<Impl>()) {
  auto tensors = describe(list);
  std::error_code ignored;
  if (!fs::is_directory(directory, ignored)) {
    throw Error(ErrorCode::bad_input, text(directory.string(), " is not a directory that files can be written to"), 0,
                directory.string());
  }
  impl_->directory = directory;
  impl_->base = base;
  impl_->mode = mode;
  impl_->slots.resize(tensors.size());
  std::vector<Bytes> sizes;
  sizes.reserve(tensors.size());
  for (const auto& tensor : tensors) sizes.push_back(tensor.end);
  const auto shards = cut_shards(sizes, max_shard);
  for (std::size_t i = 0; i < shards.size(); ++i) {
    impl_->add_shard(shards[i], tensors, shard_name(base, i, shards.size()));
  }
}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::write(std::size_t tensor, std::uint64_t first, std::span<const std::byte> bytes) {
  impl_->check_writable();
  if (tensor >= impl_->slots.size()) {
    throw Error(ErrorCode::internal, text("tensor number ", tensor, " of ", impl_->slots.size()));
  }
  auto& slot = impl_->slots[tensor];
  const auto unit = slot.tensor.element_bytes;
  const auto count = bytes.size() / unit;
  if (bytes.size() % unit != 0 || first > slot.tensor.elements || count > slot.tensor.elements - first) {
    throw Error(ErrorCode::internal, text(bytes.size(), " bytes at element ", first, " of tensor ", slot.tensor.name,
                                          ", which has ", slot.tensor.elements, " of ", unit, " bytes"));
  }
  if (!slot.written.add(first * unit, first * unit + bytes.size())) {
    throw Error(ErrorCode::internal,
                text("elements of tensor ", slot.tensor.name, " from ", first, " on written twice"));
  }
  impl_->writable = false;  // until these bytes are there
  impl_->files[slot.file]->file().write(slot.offset + first * unit, bytes);
  slot.digests.add(first * unit, bytes);
  impl_->writable = true;
}

void SafetensorsWriter::finish() {
  impl_->check_writable();
  impl_->check_complete();
  impl_->writable = false;
  impl_->complete_digests();
  if (impl_->files.size() > 1) impl_->write_index();
  for (auto& file : impl_->files) file->file().finish();
  impl_->remove_index();
  impl_->remove_sheets();
  impl_->give_names();
  impl_->write_sheets();
  impl_->remove_stale();
  sync_directory(impl_->directory);
}

}  // namespace spillway::state
