// What is read of files that anybody may have written, one function each: for libFuzzer (`make fuzz`), and for the
// corpus, which the suite replays. None throws, whatever it is given: a refusal is an Error, which ends here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>

namespace spillway::fuzz {

using Input = std::span<const std::uint8_t>;

void header(Input in);       ///< of a safetensors file; the first 4 bytes: how many bytes its data has
void index(Input in);        ///< of a model in several files
void superblock(Input in);   ///< of a volume; its checksum is put right where the last byte is odd
void records(Input in);      ///< what a record, a commit and a manifest are decoded from, checksums put right
void recovery(Input in);     ///< 8 bytes each change one place of the records that a run has left, checksums put right
void replay(Input in);       ///< the same in the volume of a run, of which every value is then read as by an export
void profile(Input in);      ///< of a machine
void description(Input in);  ///< of a model

inline const std::map<std::string, void (*)(Input)>& targets() {
  static const std::map<std::string, void (*)(Input)> all = {
      {"header", header},     {"index", index},   {"superblock", superblock}, {"records", records},
      {"recovery", recovery}, {"replay", replay}, {"profile", profile},       {"description", description}};
  return all;
}

}  // namespace spillway::fuzz
