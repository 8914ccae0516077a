#include "spillway/state/digests.h"

#include <algorithm>
#include <random>

#include "spillway/state/safetensors.h"
#include "tests/state/files.h"

namespace spillway::state {
namespace {

std::span<const std::byte> view_of(const std::string& data) {
  return std::as_bytes(std::span(data));
}

std::vector<std::uint64_t> reference(const std::string& data) {
  std::vector<std::uint64_t> out;
  for (std::size_t at = 0; at < data.size(); at += kDigestPiece) {
    out.push_back(
        storage::checksum(view_of(data).subspan(at, std::min<std::size_t>(data.size() - at, kDigestPiece)), 0));
  }
  return out;
}

constexpr std::int64_t kRows = 3 * 1024, kColumns = 1024;  // of bf16: 6 MiB

struct Saved {
  std::string a, b;
};

/// A file of two tensors, the second larger than several pieces.
Saved save(const std::filesystem::path& directory, std::mt19937_64& random) {
  Saved out{random_bytes(40, random), random_bytes(kRows * kColumns * 2, random)};
  SafetensorsWriter writer(directory, "model", {{"a", "F32", {10}}, {"b", "BF16", {kRows, kColumns}}});
  writer.write(0, 0, view_of(out.a));
  for (std::size_t at = 0, step = 333'334; at < out.b.size(); at += step) {
    writer.write(1, at / 2, view_of(out.b).subspan(at, std::min(step, out.b.size() - at)));
  }
  writer.finish();
  return out;
}

/// Other bits at one byte.
void spoil(const std::filesystem::path& file, std::size_t at) {
  auto content = get(file);
  content[at] = static_cast<char>(content[at] ^ 4);
  put(file, content);
}

/// The sheet becomes an entry of the list that a checkpoint has.
void list(const std::filesystem::path& directory, const std::string& name, const std::filesystem::path& file) {
  std::filesystem::create_directory(directory / "spillway");
  put(directory / "spillway" / "files.json",
      R"({"format": 2, "files": {")" + name + "\": " + get(sheet_of(file)) + "}}");
  std::filesystem::remove(sheet_of(file));
}

std::size_t data_begin(const std::filesystem::path& file) {
  const auto content = get(file);
  std::uint64_t length = 0;
  std::copy_n(content.data(), sizeof length, reinterpret_cast<char*>(&length));
  return sizeof length + length;
}

TEST(PieceDigests, AreThoseOfTheBytesInAnyOrder) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 20; ++round) {
    const auto data = random_bytes(random() % (4 * kDigestPiece), random);
    std::vector<std::pair<std::size_t, std::size_t>> parts;
    for (std::size_t at = 0; at < data.size();) {
      const auto size =
          std::min<std::size_t>(data.size() - at, 1 + random() % (round % 2 == 0 ? 3 * kDigestPiece : 300'000));
      parts.emplace_back(at, size);
      at += size;
    }
    if (round % 3 == 0) std::shuffle(parts.begin(), parts.end(), random);
    PieceDigests digests(data.size());
    for (const auto& [at, size] : parts) digests.add(at, view_of(data).subspan(at, size));
    std::size_t again = 0;
    EXPECT_EQ(digests.finish([&](Bytes at, std::span<std::byte> out) {
      ++again;
      std::ranges::copy(view_of(data).subspan(at, out.size()), out.begin());
    }),
              reference(data));
    if (round % 3 != 0) {
      EXPECT_EQ(again, 0U);  // bytes that rise are not read again
    }
  }
}

TEST(Digests, TextIsSortedCompactJson) {
  const FileDigests digests{.bytes = 42, .header = 0xAB, .tensors = {{"w", {1, 2}}, {"a\"b", {}}}};
  EXPECT_EQ(to_json(digests), text(R"({"bytes":42,"header":"00000000000000ab","piece":)", kDigestPiece,
                                   R"(,"tensors":{"a\"b":"","w":"00000000000000010000000000000002"}})"));
  EXPECT_EQ(parse_digests(to_json(digests), "file"), digests);
}

TEST(Digests, OfTheWriterAreThoseOfTheFile) {
  TempDir dir;
  std::mt19937_64 random(4);
  const auto saved = save(dir.path(), random);
  const auto file = dir / "model.safetensors";
  const auto found = find_digests(file);
  ASSERT_TRUE(found);
  EXPECT_EQ(*found, digests_of(file));
  EXPECT_EQ(found->bytes, std::filesystem::file_size(file));
  EXPECT_EQ(found->tensors.at("b"), reference(saved.b));
  EXPECT_EQ(parse_digests(to_json(*found), file), found);
  EXPECT_TRUE(find_damage(file, *found).empty());
}

TEST(Digests, EveryByteOfAFileHasOne) {
  TempDir dir(fast_place());
  std::mt19937_64 random(5);
  save(dir.path(), random);
  const auto file = dir / "model.safetensors";
  const auto digests = *find_digests(file);
  const auto size = std::filesystem::file_size(file), data = data_begin(file);
  std::vector<std::size_t> places{0, 7, 8, data - 1, data, data + 39, data + 40, size / 2, size - 1};
  for (int i = 0; i < 40; ++i) places.push_back(random() % size);
  for (const auto at : places) {
    spoil(file, at);
    const auto found = find_damage(file, digests);
    ASSERT_EQ(found.size(), 1U) << at;
    EXPECT_TRUE(found[0].begin <= at && at < found[0].end) << at;
    EXPECT_EQ(found[0].tensor, at < data ? "" : at < data + 40 ? "a" : "b") << at;
    spoil(file, at);
  }
  put(file, get(file) + "x");
  EXPECT_EQ(find_damage(file, digests).size(), 1U);
}

TEST(Digests, NeighboursAreOneRange) {
  TempDir dir;
  std::mt19937_64 random(6);
  save(dir.path(), random);
  const auto file = dir / "model.safetensors";
  const auto data = data_begin(file) + 40;
  for (const auto piece : {1, 2, 4}) spoil(file, data + piece * kDigestPiece + 5);
  const auto found = find_damage(file, *find_digests(file));
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].begin, data + kDigestPiece);
  EXPECT_EQ(found[0].end, data + 3 * kDigestPiece);
  EXPECT_EQ(find_damage(file, *find_digests(file), 0).size(), 0U);  // header and length alone
  EXPECT_EQ(find_damage(file, *find_digests(file), 7).size(), 2U);
}

TEST(SafetensorsReader, GivesNoByteOfADamagedPiece) {
  for (const bool listed : {false, true}) {
    TempDir dir;
    std::mt19937_64 random(7);
    const auto saved = save(dir.path(), random);
    const auto file = dir / "model.safetensors";
    const auto damaged = data_begin(file) + 40 + 2 * kDigestPiece + 77;
    if (listed) list(dir.path(), "model.safetensors", file);
    spoil(file, damaged);
    const SafetensorsReader reader(dir.path());
    EXPECT_EQ(read_all(reader, "a"), saved.a);
    const auto& b = *reader.find("b");
    std::string out(100, 'x');
    auto* const to = reinterpret_cast<std::byte*>(out.data());
    reader.read(b, kDigestPiece / 2, 50, to);  // of the piece before
    EXPECT_EQ(out, saved.b.substr(kDigestPiece, 100));
    out.assign(100, 'x');
    const auto begin = data_begin(file) + 40 + 2 * kDigestPiece;
    expect_error(ErrorCode::bad_input,
                 {"model.safetensors is damaged", "tensor b", text("bytes ", begin, " to ", begin + kDigestPiece)},
                 [&] { reader.read(b, kDigestPiece + 10'000, 50, to); });
    EXPECT_EQ(out, std::string(100, 'x'));  // the damage lies elsewhere in the piece
    expect_error(ErrorCode::bad_input, {"tensor b"}, [&] { (void)read_all(reader, "b"); });
  }
}

TEST(SafetensorsReader, GivesPartsOfPiecesAsTheyAre) {
  TempDir dir;
  std::mt19937_64 random(8);
  const auto saved = save(dir.path(), random);
  const SafetensorsReader reader(dir.path());
  const auto& b = *reader.find("b");
  for (int round = 0; round < 200; ++round) {
    const auto first = random() % b.elements, count = std::min(b.elements - first, random() % 1'500'000);
    std::string out(count * 2, '\0');
    reader.read(b, first, count, reinterpret_cast<std::byte*>(out.data()));
    ASSERT_TRUE(saved.b.compare(first * 2, count * 2, out) == 0) << first << " and " << count;
  }
}

TEST(SafetensorsReader, RefusesAnotherHeaderOrLength) {
  TempDir dir;
  std::mt19937_64 random(9);
  save(dir.path(), random);
  const auto file = dir / "model.safetensors";
  auto content = get(file);
  const auto name = content.find("\"b\"");
  content[name + 1] = 'c';  // a header that is good in itself
  put(file, content);
  expect_error(ErrorCode::bad_input, {"model.safetensors is damaged", "header", "files.json"},
               [&] { const SafetensorsReader reader(dir.path()); });
}

TEST(Digests, AreFoundInTheListsOfDirectoriesAbove) {
  TempDir dir;
  std::mt19937_64 random(10);
  const auto checkpoint = dir / "checkpoint-2", state = checkpoint / "spillway", adapter = state / "adapter";
  std::filesystem::create_directories(adapter);
  for (const auto& [place, name] :
       {std::pair(checkpoint, "model.safetensors"), std::pair(state, "spillway/model.safetensors"),
        std::pair(adapter, "spillway/adapter/model.safetensors")}) {
    save(place, random);
    const auto file = place / "model.safetensors";
    const auto made = find_digests(file);
    list(checkpoint, name, file);
    EXPECT_EQ(find_digests(file), made) << name;
    std::filesystem::remove(state / "files.json");
    EXPECT_FALSE(find_digests(file)) << name;
  }
}

TEST(Digests, OfAnOlderListAreNone) {
  TempDir dir;
  std::mt19937_64 random(11);
  save(dir.path(), random);
  const auto file = dir / "model.safetensors";
  list(dir.path(), "model.safetensors", file);
  put(dir / "spillway/files.json", R"({"format": 1, "files": {"model.safetensors": {"bytes": 1, "digest": "00"}}})");
  EXPECT_FALSE(find_digests(file));
  spoil(file, data_begin(file) + 50);
  const SafetensorsReader reader(dir.path());
  EXPECT_EQ(read_all(reader, "b").size(), static_cast<std::size_t>(kRows * kColumns * 2));
}

TEST(Digests, RefuseAListThatIsDamaged) {
  TempDir dir;
  std::mt19937_64 random(12);
  save(dir.path(), random);
  const auto file = dir / "model.safetensors";
  const auto sheet = get(sheet_of(file));
  for (const auto& bad : {sheet.substr(0, sheet.size() / 2), std::string("[]"), std::string(R"({"bytes": 1})"),
                          std::string(R"({"bytes":1,"header":"00","piece":1048576,"tensors":{}})"),
                          std::string(R"({"bytes":1,"header":"gggggggggggggggg","piece":1048576,"tensors":{}})")}) {
    put(sheet_of(file), bad);
    expect_error(ErrorCode::bad_input, {".digests", "cannot be read"}, [&] { (void)find_digests(file); });
  }
  put(sheet_of(file), R"({"bytes":1,"header":"0000000000000000","piece":77,"tensors":{}})");
  EXPECT_FALSE(find_digests(file));  // pieces of another length
}

TEST(Digests, OfAnOlderFileGoWithIt) {
  TempDir dir;
  std::mt19937_64 random(13);
  save(dir.path(), random);
  {
    SafetensorsWriter writer(dir.path(), "model", {{"x", "U8", {4}}, {"y", "U8", {4}}}, 5);
    writer.write(0, 0, view_of("xxxx"));
    writer.write(1, 0, view_of("yyyy"));
    writer.finish();
  }
  EXPECT_FALSE(std::filesystem::exists(sheet_of(dir / "model.safetensors")));
  EXPECT_EQ(find_digests(dir / "model-00002-of-00002.safetensors"),
            digests_of(dir / "model-00002-of-00002.safetensors"));
}

}  // namespace
}  // namespace spillway::state
