#include <algorithm>
#include <atomic>
#include <cctype>
#include <string>

#include "kernels/simd_config.h"
// After the configuration:
#include "hwy/targets.h"
#include "kernels/attention.h"
#include "kernels/codes_avx512.h"
#include "kernels/kernel_table.h"
#include "kernels/prefill_amx.h"
#include "kernels/simd_kernels.h"

namespace qevict {
namespace {

// Highway's tables, asked for target by target; afterwards our own pointer decides, not Highway's.
std::vector<KernelTable> highway_tables() {
  std::vector<KernelTable> tables;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    const DecodeKernels decode = highway_decode_kernels();
    const PrefillKernels prefill = highway_prefill_kernels();
    tables.push_back({hwy::TargetName(target),
                      decode.f16,
                      decode.codes,
                      {highway_codes16(), highway_blocks(), highway_kivi()},
                      decode.window,
                      prefill,
                      highway_rows()});
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
  return tables;
}

bool codes_avx512(const DecodeTask& task) {
  return decode_paper_avx512(task) || decode_kxvy_avx512(task) || decode_blocks_avx512(task);
}

struct Targets {
  std::vector<KernelTable> tables;
  std::vector<const KernelTable*> list;  // best first, the reference last
  std::atomic<const KernelTable*> active;

  Targets() : tables(highway_tables()) {
    // Targets written in intrinsics: Highway's AVX3 with some entries replaced.
    const auto avx3 = std::find_if(tables.begin(), tables.end(), [](const KernelTable& t) { return t.name == "AVX3"; });
    if (avx3 != tables.end() && cpu_has_avx512_vnni()) {
      KernelTable vnni = *avx3;
      vnni.name = "AVX3_VNNI";
      vnni.read_codes[0] = &codes_avx512;
      KernelTable amx = vnni;
      amx.name = "AVX3_AMX";
      amx.prefill = amx_prefill_kernels();
      const auto at = tables.insert(avx3, vnni);
      if (enable_amx_bf16()) tables.insert(at, amx);
    }
    for (const KernelTable& table : tables) list.push_back(&table);
    list.push_back(&reference_kernels());
    active = list.front();
  }
};

Targets& targets() {
  static Targets all;
  return all;
}

bool same_name(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

}  // namespace

std::span<const KernelTable* const> kernel_tables() { return targets().list; }

const KernelTable& active_kernels() { return *targets().active.load(std::memory_order_relaxed); }

std::string_view simd_target() { return active_kernels().name; }

std::vector<std::string_view> simd_targets() {
  std::vector<std::string_view> names;
  for (const KernelTable* table : kernel_tables()) names.push_back(table->name);
  return names;
}

bool force_simd_target(std::string_view name) {
  for (const KernelTable* table : kernel_tables()) {
    if (!same_name(table->name, name)) continue;
    targets().active = table;
    return true;
  }
  return false;
}

}  // namespace qevict
