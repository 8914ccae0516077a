#include "spillway/sys/aligned_heap.h"

#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string_view>

namespace spillway::sys {
namespace {

constexpr std::size_t kLeast = 4096;  // bytes; glibc keeps smaller blocks in lists by thread
constexpr std::size_t kHeader = 8;    // bytes that glibc keeps of each block
constexpr std::size_t kSlack = 128;   // bytes more than posix_memalign asks for to find a line's beginning in a block
constexpr std::string_view kReplaced = "posix_memalign";

struct Asked {
  std::span<const std::string> libraries;
  std::size_t changed = 0;
};

/// What the dynamic section of a loaded library says.
struct Tables {
  const char* names = nullptr;
  const ElfW(Sym) * symbols = nullptr;
  std::span<const ElfW(Rela)> calls, data;
};

/// glibc has added the address at which the library lies, other C libraries have not.
template <class T>
const T* there(const dl_phdr_info& library, ElfW(Addr) address) {
  if (address < library.dlpi_addr) address += library.dlpi_addr;
  return reinterpret_cast<const T*>(address);
}

Tables tables_of(const dl_phdr_info& library, const ElfW(Dyn) * entry) {
  Tables found;
  const ElfW(Rela)* calls = nullptr, *data = nullptr;
  std::size_t call_bytes = 0, data_bytes = 0;
  bool with_addends = true;
  for (; entry->d_tag != DT_NULL; ++entry) {
    const auto value = entry->d_un;
    if (entry->d_tag == DT_STRTAB) found.names = there<char>(library, value.d_ptr);
    if (entry->d_tag == DT_SYMTAB) found.symbols = there<ElfW(Sym)>(library, value.d_ptr);
    if (entry->d_tag == DT_JMPREL) calls = there<ElfW(Rela)>(library, value.d_ptr);
    if (entry->d_tag == DT_PLTRELSZ) call_bytes = value.d_val;
    if (entry->d_tag == DT_PLTREL) with_addends = value.d_val == DT_RELA;
    if (entry->d_tag == DT_RELA) data = there<ElfW(Rela)>(library, value.d_ptr);
    if (entry->d_tag == DT_RELASZ) data_bytes = value.d_val;
  }
  if (calls != nullptr && with_addends) found.calls = {calls, call_bytes / sizeof(ElfW(Rela))};
  if (data != nullptr) found.data = {data, data_bytes / sizeof(ElfW(Rela))};
  return found;
}

/// Whether a table's entry lies on a page that the loader has closed to writing (whole pages of PT_GNU_RELRO).
bool read_only(const dl_phdr_info& library, std::uintptr_t entry, std::uintptr_t page) {
  return std::ranges::any_of(std::span(library.dlpi_phdr, library.dlpi_phnum), [&](const ElfW(Phdr) & part) {
    const auto first = library.dlpi_addr + part.p_vaddr;
    return part.p_type == PT_GNU_RELRO && entry >= first && entry < (first + part.p_memsz) / page * page;
  });
}

bool write(const dl_phdr_info& library, std::uintptr_t entry) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  auto* const begin = reinterpret_cast<void*>(entry / page * page);
  const bool closed = read_only(library, entry, page);
  if (closed && ::mprotect(begin, page, PROT_READ | PROT_WRITE) != 0) return false;
  __atomic_store_n(reinterpret_cast<std::uintptr_t*>(entry), reinterpret_cast<std::uintptr_t>(&aligned),
                   __ATOMIC_RELEASE);
  if (closed) ::mprotect(begin, page, PROT_READ);
  return true;
}

std::size_t changed(const dl_phdr_info& library, const Tables& tables, std::span<const ElfW(Rela)> entries) {
  return static_cast<std::size_t>(std::ranges::count_if(entries, [&](const ElfW(Rela) & entry) {
    const auto symbol = ELF64_R_SYM(entry.r_info);
    return symbol != 0 && entry.r_addend == 0 && tables.names + tables.symbols[symbol].st_name == kReplaced &&
           write(library, library.dlpi_addr + entry.r_offset);
  }));
}

int look_at(dl_phdr_info* library, std::size_t /*size*/, void* data) {
  auto& asked = *static_cast<Asked*>(data);
  const std::string_view path = library->dlpi_name == nullptr ? "" : library->dlpi_name;
  if (std::ranges::find(asked.libraries, path.substr(path.rfind('/') + 1)) == asked.libraries.end()) return 0;
  for (const auto& part : std::span(library->dlpi_phdr, library->dlpi_phnum)) {
    if (part.p_type != PT_DYNAMIC) continue;
    const auto tables = tables_of(*library, reinterpret_cast<const ElfW(Dyn)*>(library->dlpi_addr + part.p_vaddr));
    if (tables.names == nullptr || tables.symbols == nullptr) continue;
    asked.changed += changed(*library, tables, tables.calls) + changed(*library, tables, tables.data);
  }
  return 0;
}

/// Where the heap has room for so many bytes.
std::uintptr_t room_for(std::size_t size) {
  void* const found = std::malloc(size);
  const volatile auto address = reinterpret_cast<std::uintptr_t>(found);  // else GCC takes it for the pointer
  std::free(found);
  return address;
}

}  // namespace

int aligned(void** block, std::size_t alignment, std::size_t size) noexcept {
  if (alignment == kAlignment && size >= kLeast && size < std::numeric_limits<std::size_t>::max() / 2) {
    size = (size + kHeader + kAlignment - 1) / kAlignment * kAlignment - kHeader;
    void* const found = std::malloc(size);
    if (reinterpret_cast<std::uintptr_t>(found) % kAlignment == 0 && found != nullptr) {
      *block = found;
      return 0;
    }
    std::free(found);
    // What lies before the block up to the line's beginning is free, and becomes one with the hole that it leaves: that
    // begins in no line, and has room for another one only with what is asked for here, unless the block is in such a
    // hole already, which has none for more.
    const auto room = room_for(size + 4 * kSlack);
    const auto error = ::posix_memalign(block, alignment, size);
    if (error != 0 || reinterpret_cast<std::uintptr_t>(*block) - room >= kSlack) return error;
    std::free(*block);
    size += kSlack;
  }
  return ::posix_memalign(block, alignment, size);
}

std::size_t redirect_posix_memalign(std::span<const std::string> libraries) noexcept {
  Asked asked{libraries};
  ::dl_iterate_phdr(look_at, &asked);
  return asked.changed;
}

}  // namespace spillway::sys
