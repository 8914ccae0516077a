#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <random>

#include "spillway/state/safetensors.h"
#include "tests/state/files.h"

namespace spillway::state {
namespace {

std::span<const std::byte> bytes_of(const std::string& data) {
  return std::as_bytes(std::span(data));
}

TEST(SafetensorsWriter, WritesOneFile) {
  TempDir dir;
  SafetensorsWriter writer(dir.path(), "model", {{"b", "BF16", {2, 2}}, {"s", "F32", {}}, {"none", "F32", {0, 3}}});
  writer.write(1, 0, bytes_of("SSSS"));
  writer.write(0, 2, bytes_of("3344"));
  writer.write(0, 0, bytes_of("1122"));
  EXPECT_EQ(file_names(dir.path()), std::set<std::string>{"model.safetensors.partial"});
  writer.finish();
  EXPECT_EQ(file_names(dir.path()), std::set<std::string>{"model.safetensors"});
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"none":{"dtype":"F32","shape":[0,3],"data_offsets":[0,0]},)"
      R"("s":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"b":{"dtype":"BF16","shape":[2,2],"data_offsets":[4,12]}})";
  EXPECT_EQ(get(dir / "model.safetensors"),
            safetensors(json + std::string((8 - json.size() % 8) % 8, ' '), "SSSS11223344"));
}

TEST(SafetensorsWriter, CutsShardsAndWritesTheIndex) {
  TempDir dir;
  {
    SafetensorsWriter writer(dir.path(), "model", {{"z", "U8", {6}}, {"y", "U8", {6}}, {"x", "U8", {2}}}, 10);
    writer.write(2, 0, bytes_of("xx"));
    writer.write(0, 0, bytes_of("zzzzzz"));
    writer.write(1, 0, bytes_of("yyyyyy"));
    writer.finish();
  }
  EXPECT_EQ(file_names(dir.path()),
            (std::set<std::string>{"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                                   "model.safetensors.index.json"}));
  EXPECT_EQ(get(dir / "model.safetensors.index.json"),
            "{\n  \"metadata\": {\n    \"total_parameters\": 14,\n    \"total_size\": 14\n  },\n  \"weight_map\": {\n"
            "    \"x\": \"model-00002-of-00002.safetensors\",\n    \"y\": \"model-00002-of-00002.safetensors\",\n"
            "    \"z\": \"model-00001-of-00002.safetensors\"\n  }\n}\n");
  const SafetensorsReader reader(dir.path());
  EXPECT_EQ(read_all(reader, "x") + read_all(reader, "y") + read_all(reader, "z"), "xxyyyyyyzzzzzz");
}

TEST(SafetensorsWriter, TakesBytesInAnyOrder) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 30; ++round) {
    TempDir dir;
    std::vector<TensorOut> tensors;
    std::vector<std::string> data;
    struct Piece {
      std::size_t tensor;
      std::uint64_t first, count;
    };
    std::vector<Piece> pieces;
    const std::vector<std::pair<std::string, Bytes>> types{{"U8", 1}, {"BF16", 2}, {"F32", 4}, {"I64", 8}};
    std::vector<Bytes> units;
    for (std::size_t t = 0; t < 1 + random() % 8; ++t) {
      const auto& [dtype, unit] = types[random() % types.size()];
      const auto rows = static_cast<std::int64_t>(random() % 30), columns = static_cast<std::int64_t>(1 + random() % 9);
      tensors.push_back({text("t", random() % 1000, ".", t), dtype, {rows, columns}});
      units.push_back(unit);
      const auto elements = static_cast<std::uint64_t>(rows * columns);
      data.push_back(random_bytes(elements * unit, random));
      for (std::uint64_t at = 0; at < elements;) {
        const auto count = std::min(elements - at, 1 + random() % 50);
        pieces.push_back({t, at, count});
        at += count;
      }
    }
    std::shuffle(pieces.begin(), pieces.end(), random);
    SafetensorsWriter writer(dir.path(), "model", tensors, 1 + random() % 2000);
    for (const auto& [tensor, first, count] : pieces) {
      const auto unit = units[tensor];
      writer.write(tensor, first, bytes_of(data[tensor]).subspan(first * unit, count * unit));
    }
    writer.finish();
    const SafetensorsReader reader(dir.path());
    ASSERT_EQ(reader.tensors().size(), tensors.size());
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      const auto& stored = *reader.find(tensors[t].name);
      EXPECT_EQ(stored.shape, tensors[t].shape);
      EXPECT_EQ(stored.dtype, tensors[t].dtype);
      EXPECT_EQ(stored.offset % stored.element_bytes, 0U) << "aligned to its element";
      EXPECT_EQ(read_all(reader, tensors[t].name), data[t]);
    }
  }
}

TEST(SafetensorsWriter, WithoutFinishNothingIsLeftAndTheOldFileStays) {
  TempDir dir;
  put(dir / "model.safetensors", "old");
  {
    SafetensorsWriter writer(dir.path(), "model", {{"a", "U8", {4}}, {"b", "U8", {4}}}, 4);
    writer.write(0, 0, bytes_of("abcd"));
    EXPECT_EQ(file_names(dir.path()).size(), 3U);
  }
  EXPECT_EQ(file_names(dir.path()), std::set<std::string>{"model.safetensors"});
  EXPECT_EQ(get(dir / "model.safetensors"), "old");
}

TEST(SafetensorsWriter, ReplacesAnOlderCheckpointOfAnotherShape) {
  TempDir dir;
  for (const auto* name : {"model.safetensors", "model-00003-of-00003.safetensors", "model.safetensors.index.json",
                           "model-00001-of-00009.safetensors.partial", "config.json", "exp_avg.safetensors"}) {
    put(dir / name, "old");
  }
  const auto write = [&](Bytes max_shard) {
    SafetensorsWriter writer(dir.path(), "model", {{"a", "U8", {4}}, {"b", "U8", {4}}}, max_shard);
    writer.write(0, 0, bytes_of("aaaa"));
    writer.write(1, 0, bytes_of("bbbb"));
    writer.finish();
  };
  const std::set<std::string> others{"config.json", "exp_avg.safetensors"};
  const auto expect_names = [&](std::set<std::string> names) {
    names.insert(others.begin(), others.end());
    EXPECT_EQ(file_names(dir.path()), names);
    EXPECT_EQ(read_all(SafetensorsReader(dir.path()), "b"), "bbbb");
  };
  write(4);
  expect_names(
      {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"});
  write(8);
  expect_names({"model.safetensors"});
}

TEST(SafetensorsWriter, AByteThatNeverCameIsNamed) {
  TempDir dir;
  SafetensorsWriter writer(dir.path(), "model", {{"a", "BF16", {4}}, {"b", "BF16", {2}}});
  writer.write(0, 0, bytes_of("12345678"));
  expect_error(ErrorCode::internal, {"tensor b", "byte 0 of 4"}, [&] { writer.finish(); });
  writer.write(1, 1, bytes_of("xx"));
  expect_error(ErrorCode::internal, {"tensor b", "byte 0 of 4"}, [&] { writer.finish(); });
  writer.write(1, 0, bytes_of("yy"));
  writer.finish();
  expect_error(ErrorCode::internal, {"finished"}, [&] { writer.finish(); });
  expect_error(ErrorCode::internal, {"finished"}, [&] { writer.write(0, 0, bytes_of("12")); });
  EXPECT_EQ(read_all(SafetensorsReader(dir.path()), "b"), "yyxx");
}

TEST(SafetensorsWriter, BytesOutOfPlaceAreRefused) {
  TempDir dir;
  SafetensorsWriter writer(dir.path(), "model", {{"a", "BF16", {4}}});
  const auto refused = [&](std::size_t tensor, std::uint64_t first, const std::string& data) {
    expect_error(ErrorCode::internal, {"tensor"}, [&] { writer.write(tensor, first, bytes_of(data)); });
  };
  refused(1, 0, "xx");
  refused(0, 0, "x");
  refused(0, 3, "xxxx");
  refused(0, 5, "");
  refused(0, ~std::uint64_t{0}, "xx");
  writer.write(0, 1, bytes_of("bbcc"));
  refused(0, 1, "xx");
  refused(0, 0, "xxxx");
  refused(0, 2, "xxxx");
  writer.write(0, 0, bytes_of("aa"));
  writer.write(0, 3, bytes_of("dd"));
  writer.write(0, 4, {});
  writer.finish();
  EXPECT_EQ(read_all(SafetensorsReader(dir.path()), "a"), "aabbccdd");
}

TEST(SafetensorsWriter, AListThatCannotBeIsRefusedBeforeAnyFile) {
  TempDir dir;
  const auto refused = [&](std::vector<TensorOut> tensors, const std::vector<std::string>& parts) {
    expect_error(ErrorCode::bad_input, parts, [&] { SafetensorsWriter writer(dir.path(), "model", tensors); });
  };
  refused({}, {"no tensors"});
  refused({{"", "U8", {1}}}, {"name"});
  refused({{"__metadata__", "U8", {1}}}, {"__metadata__"});
  refused({{"\xff", "U8", {1}}}, {"name"});
  refused({{"a", "U8", {1}}, {"a", "U8", {1}}}, {"tensor a", "twice"});
  refused({{"a", "float32", {1}}}, {"tensor a", "float32"});
  refused({{"a", "U8", {-1}}}, {"tensor a", "-1"});
  refused({{"a", "F64", {1LL << 40, 1LL << 30}}}, {"tensor a", "more bytes"});
  EXPECT_TRUE(file_names(dir.path()).empty());
  expect_error(ErrorCode::bad_input, {(dir / "nowhere").string()}, [&] {
    SafetensorsWriter writer(dir / "nowhere", "model", {{"a", "U8", {1}}});
  });
}

TEST(SafetensorsWriter, MoreThanTheDiskHoldsIsRefusedAtOnce) {
  TempDir dir;
  const auto error = error_of([&] {
    SafetensorsWriter writer(dir.path(), "model", {{"small", "U8", {4}}, {"huge", "U8", {1LL << 60}}}, 100);
  });
  EXPECT_EQ(error.code(), ErrorCode::io);
  EXPECT_TRUE(error.errno_value() == ENOSPC || error.errno_value() == EFBIG) << error.what();
  EXPECT_NE(std::string(error.what()).find("safetensors.partial"), std::string::npos) << error.what();
  EXPECT_TRUE(file_names(dir.path()).empty()) << "the first shard is gone, too";
}

/// Files of this process may not grow beyond `bytes` while this lives; writes then fail with EFBIG.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : signal_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, signal_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  void (*signal_)(int);
  rlimit before_{};
};

TEST(SafetensorsWriter, AWriteThatFailsLeavesNothing) {
  TempDir dir;
  const std::string data(100'000, 'x');
  {
    SafetensorsWriter writer(dir.path(), "model", {{"a", "U8", {200'000}}});
    writer.write(0, 0, bytes_of(data));
    {
      const FileSizeLimit limit(150'000);
      const auto error = error_of([&] { writer.write(0, 100'000, bytes_of(data)); });
      EXPECT_EQ(error.code(), ErrorCode::io);
      EXPECT_EQ(error.errno_value(), EFBIG);
      EXPECT_EQ(error.path(), (dir / "model.safetensors.partial").string());
    }
    expect_error(ErrorCode::internal, {"failed"}, [&] { writer.finish(); });
    expect_error(ErrorCode::internal, {"failed"}, [&] { writer.write(0, 100'000, bytes_of(data)); });
  }
  EXPECT_TRUE(file_names(dir.path()).empty());
}

TEST(SafetensorsWriter, ANameThatIsTakenByADirectoryIsAnError) {
  TempDir dir;
  std::filesystem::create_directory(dir / "model.safetensors");
  {
    SafetensorsWriter writer(dir.path(), "model", {{"a", "U8", {1}}});
    writer.write(0, 0, bytes_of("x"));
    expect_error(ErrorCode::io, {"rename", "model.safetensors"}, [&] { writer.finish(); });
  }
  EXPECT_EQ(file_names(dir.path()), std::set<std::string>{"model.safetensors"});
}

}  // namespace
}  // namespace spillway::state
