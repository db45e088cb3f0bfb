#include "bench_kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "bench_run.h"
#include "kernels/kernel_bench.h"
#include "messages.h"
#include "progress.h"
#include "rival_ggml.h"
#include "terminal.h"

namespace qevict::app {
namespace {

Json json_of(const Spread& spread) {
  if (spread.median == 0.0) return nullptr;
  return {{"median", spread.median}, {"min", spread.lowest}, {"max", spread.highest}};
}

Json row_of(const KernelBenchRow& row) {
  return {{"engine", "qevict"},
          {"kernel", row.kernel},
          {"target", row.target},
          {"head_dim", row.shape.key_dim},
          {"group", row.shape.group},
          {"n_kv_heads", row.n_kv_heads},
          {"n_tokens", row.n_tokens},
          {"output_error", row.output_error},
          {"logit_error", row.logit_error},
          {"bytes", row.bytes},
          {"ms", json_of(row.milliseconds)},
          {"ns_per_token", json_of(row.ns_per_token)},
          {"gb_per_second", json_of(row.gb_per_second)},
          {"share_of_bandwidth", json_of(row.share_of_bandwidth)},
          {"share_of_f16_time", json_of(row.share_of_f16_time)}};
}

// Of values times `scale`.
Json range(const std::vector<double>& values, double scale) {
  std::vector<double> scaled;
  for (const double value : values) scaled.push_back(value * scale);
  return {{"median", percentile(scaled, 50)}, {"min", std::ranges::min(scaled)}, {"max", std::ranges::max(scaled)}};
}

// bytes: read in one pass, 0 if that is not the point. bandwidth: bytes a second.
Json rival_row(const char* kernel, const AttentionShape& shape, int n_kv_heads, double error,
               const std::vector<double>& seconds, double bytes, double bandwidth) {
  Json row = {{"engine", "ggml"},
              {"kernel", kernel},
              {"target", "ggml"},
              {"head_dim", shape.head_dim},
              {"group", shape.group},
              {"n_kv_heads", n_kv_heads},
              {"n_tokens", shape.n_tokens},
              {"output_error", error},
              {"ms", range(seconds, 1e3)},
              {"ns_per_token", range(seconds, 1e9 / (static_cast<double>(shape.n_tokens) * n_kv_heads))}};
  if (bytes > 0) {
    std::vector<double> rates;
    for (const double one : seconds) rates.push_back(bytes / one);
    row["bytes"] = bytes;
    row["gb_per_second"] = range(rates, 1e-9);
    row["share_of_bandwidth"] = range(rates, 1 / bandwidth);
  }
  return row;
}

struct RivalTimes {
  std::vector<double> decode, prefill;
};

void time_rival(GgmlAttention& rival, int repetitions, RivalTimes& times) {
  for (int i = 0; i < repetitions && !interrupted(); ++i) {
    times.decode.push_back(rival.decode());
    times.prefill.push_back(rival.prefill());
  }
}

bool is_prefill(const Json& row) { return row["kernel"].get<std::string>().starts_with("prefill"); }

}  // namespace

void add_kernel_ratios(std::vector<Json>& rows) {
  for (Json& row : rows) {
    for (const Json& rival : rows) {
      if (rival["engine"] != "ggml" || is_prefill(rival) != is_prefill(row)) continue;
      row["vs_ggml"] = row["ms"]["median"].get<double>() / rival["ms"]["median"].get<double>();
      break;
    }
  }
}

int bench_kernels(const Options& options, const KernelPlan& plan) {
  AttentionShape shape = {.n_tokens = plan.n_tokens};
  shape.n_threads = options.threads > 0 ? options.threads : std::max(1U, std::thread::hardware_concurrency());
  {
    const Result<Model> model = Model::load(options.model);
    if (!model) return fail(model.error());
    const ModelInfo& info = model->info();
    shape.head_dim = info.head_dim;
    shape.group = info.n_heads / info.n_kv_heads;
    shape.n_kv_heads = info.n_kv_heads;
    shape.n_layers = info.n_layers;
  }
  KernelBenchOptions ours = {.n_threads = shape.n_threads,
                             .repetitions = plan.repetitions,
                             .n_tokens = plan.n_tokens,
                             .shape = {shape.head_dim, shape.head_dim, shape.group},
                             .n_decode_heads = shape.n_kv_heads * shape.n_layers,
                             .n_prefill_heads = shape.n_kv_heads,
                             .prefill_chunk = shape.batch};
  if (!options.simd.empty()) ours.targets = {options.simd};

  ProgressBar bar("timing kernels");
  const Result<std::unique_ptr<GgmlAttention>> rival = GgmlAttention::create(shape);
  if (!rival) return fail(rival.error());
  // The rival before and after ours, so that its spread holds what the machine drifted meanwhile.
  RivalTimes times;
  bar.update(1, 10);
  (*rival)->prefill();  // thrown away
  time_rival(**rival, (plan.repetitions + 1) / 2, times);
  KernelBench result;
  for (const bool decode : {true, false}) {
    bar.update(decode ? 3 : 6, 10);
    wait_until_quiet();
    if (interrupted()) return fail_interrupted();
    ours.decode = decode;
    ours.prefill = !decode;
    const KernelBench part = qevict::bench_kernels(ours);
    if (decode) result.read_gb_per_second = part.read_gb_per_second;
    result.rows.insert(result.rows.end(), part.rows.begin(), part.rows.end());
  }
  bar.update(9, 10);
  time_rival(**rival, plan.repetitions / 2, times);
  bar.finish();
  if (interrupted()) return fail_interrupted();

  std::vector<Json> rows;
  for (const KernelBenchRow& row : result.rows) rows.push_back(row_of(row));
  const double bandwidth = result.read_gb_per_second.median * 1e9;
  rows.push_back(rival_row("decode ggml_flash_attn_ext f16", shape, ours.n_decode_heads, (*rival)->output_error(),
                           times.decode, (*rival)->cache_bytes(), bandwidth));
  rows.push_back(rival_row("prefill ggml_flash_attn_ext f16", shape, shape.n_kv_heads, (*rival)->output_error(),
                           times.prefill, 0, bandwidth));
  add_kernel_ratios(rows);
  for (Json& row : rows) {
    row["n_threads"] = shape.n_threads;
    row["repetitions"] = plan.repetitions;
    row["read_gb_per_second"] = json_of(result.read_gb_per_second);
    row["version"] = version();
  }
  print_note(fmt::format("memory read by {} threads: {:.1f} GB/s ({:.1f}–{:.1f}), over {:.0f} MB; prefill: one layer",
                         shape.n_threads, result.read_gb_per_second.median, result.read_gb_per_second.lowest,
                         result.read_gb_per_second.highest, (*rival)->cache_bytes() * 1e-6));
  Output output;
  output.write(bench_text(rows, plan.format, kernel_columns()));
  const Result<void> written = output.status();
  return written ? kExitOk : fail(written.error());
}

}  // namespace qevict::app
