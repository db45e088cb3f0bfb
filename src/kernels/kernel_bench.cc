#include "kernels/kernel_bench.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <functional>
#include <thread>

#include "base/check.h"
#include "base/rng.h"
#include "kernels/attention_ref.h"

namespace qevict {
namespace {

using Clock = std::chrono::steady_clock;

Spread spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values.front(), values.back()};
}

// Runs tasks 0 .. n-1 on a team of threads; returns seconds.
double time_tasks(int n_threads, int n_tasks, const std::function<void(int task, int thread)>& run) {
  std::atomic<int> next = 0;
  Clock::time_point begin;
  std::barrier start(n_threads, [&]() noexcept { begin = Clock::now(); });
  const auto work = [&](int thread) {
    start.arrive_and_wait();
    for (int task; (task = next.fetch_add(1)) < n_tasks;) run(task, thread);
  };
  std::vector<std::thread> threads;
  for (int t = 1; t < n_threads; ++t) threads.emplace_back(work, t);
  work(0);
  for (std::thread& thread : threads) thread.join();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Plain reads of a buffer, in pieces of 1 MiB dealt to the threads.
double time_reads(int n_threads, std::span<const std::uint64_t> words) {
  constexpr std::size_t kPiece = (1 << 20) / sizeof(std::uint64_t);
  std::atomic<std::uint64_t> sink = 0;
  return time_tasks(n_threads, static_cast<int>(words.size() / kPiece), [&](int task, int) {
    const std::uint64_t* piece = words.data() + task * kPiece;
    std::uint64_t sums[32] = {};
    for (std::size_t i = 0; i < kPiece; i += 32)
      for (int k = 0; k < 32; ++k) sums[k] ^= piece[i + k];
    for (const std::uint64_t sum : sums) sink ^= sum;
  });
}

Rope bench_rope(int pairs) {
  Rope rope{.frequency = {}, .magnitude = 1.0f, .neox = false};
  for (int i = 0; i < pairs; ++i)
    rope.frequency.push_back(static_cast<float>(std::pow(1e5, -static_cast<double>(i) / pairs)));
  return rope;
}

// Heads of f16 tokens or of codes; every head has the same content in its own memory.
struct DecodeData {
  HeadShape shape;
  int n_tokens;
  Rope rope;
  std::vector<std::uint64_t> memory;
  std::string name;
  std::vector<std::vector<F16Run>> runs;  // of each head
  std::vector<std::vector<CodeWindow>> windows;
  const CodecRow* codec = nullptr;
  WindowShape window;
  std::vector<std::byte> head_data;
  std::vector<float> query;
  float scale;
  double bytes;

  HeadView head(int h) const {
    HeadView view{{}, {}, codec, window, head_data, &rope};
    if (codec == nullptr) {
      view.f16 = runs[h];
    } else {
      view.codes = windows[h];
    }
    return view;
  }
};

// scattered: f16 tokens in windows of 8, each in a slot of its own, in no order.
DecodeData make_data(const KernelBenchOptions& options, const CodecRow* codec, bool scattered) {
  const HeadShape& shape = options.shape;
  DecodeData data{.shape = shape, .n_tokens = options.n_tokens / 32 * 32, .rope = bench_rope(shape.key_dim / 2)};
  if (codec != nullptr) data.n_tokens = std::max(1, data.n_tokens / codec->window_tokens) * codec->window_tokens;
  data.codec = codec;
  data.name = codec != nullptr ? std::string(codec->name) : scattered ? "f16 windows" : "f16";
  data.scale = 1.0f / std::sqrt(static_cast<float>(shape.key_dim));
  Rng rng(1);
  for (int i = 0; i < shape.group * shape.key_dim; ++i) data.query.push_back(1.5f * static_cast<float>(rng.normal()));
  std::vector<float> keys, values;
  std::vector<float> mean(shape.key_dim), deviation(shape.key_dim);
  for (float& m : mean) m = static_cast<float>(rng.normal());
  for (float& s : deviation) s = 0.3f + std::abs(static_cast<float>(rng.normal()));
  for (int i = 0; i < data.n_tokens; ++i) {
    for (int d = 0; d < shape.key_dim; ++d) keys.push_back(mean[d] + deviation[d] * static_cast<float>(rng.normal()));
    for (int d = 0; d < shape.value_dim; ++d) values.push_back(static_cast<float>(rng.normal()));
  }
  std::vector<std::byte> one;
  if (codec == nullptr) {
    one.resize((keys.size() + values.size()) * sizeof(Half));
    Half* half = reinterpret_cast<Half*>(one.data());
    for (const float k : keys) *half++ = to_half(k);
    for (const float v : values) *half++ = to_half(v);
  } else {
    data.window = {codec->window_tokens, shape.key_dim, shape.value_dim};
    data.head_data.resize(codec->head_bytes(data.window));
    if (!data.head_data.empty()) codec->estimate_head(data.window, keys, values, data.head_data);
    const std::size_t bytes = codec->window_bytes(data.window);
    const std::size_t n = data.window.tokens, key_floats = n * shape.key_dim, value_floats = n * shape.value_dim;
    one.resize(bytes * data.n_tokens / n);
    for (std::size_t w = 0; w < data.n_tokens / n; ++w)
      codec->encode(data.window, std::span<const float>(keys).subspan(w * key_floats, key_floats),
                    std::span<const float>(values).subspan(w * value_floats, value_floats), data.head_data,
                    std::span<std::byte>(one).subspan(w * bytes, bytes));
  }
  one.resize((one.size() + 63) / 64 * 64);
  data.bytes = static_cast<double>(one.size()) * options.n_decode_heads;
  data.memory.resize(one.size() / 8 * options.n_decode_heads + 8);
  std::byte* at = reinterpret_cast<std::byte*>(data.memory.data());
  for (int h = 0; h < options.n_decode_heads; ++h, at += one.size()) {
    std::copy(one.begin(), one.end(), at);
    if (codec == nullptr) {
      const Half* half = reinterpret_cast<const Half*>(at);
      std::vector<F16Run>& runs = data.runs.emplace_back();
      const int n = scattered ? 8 : data.n_tokens;
      for (int first = 0; first < data.n_tokens; first += n) {
        // 97 is prime to the number of windows unless that is a multiple of it: then some slots serve twice.
        const std::ptrdiff_t slot = std::int64_t{first / n} * 97 % (data.n_tokens / n);
        runs.push_back({half + slot * n * shape.key_dim, half + keys.size() + slot * n * shape.value_dim, n, first});
      }
    } else {
      std::vector<CodeWindow>& windows = data.windows.emplace_back();
      for (int w = 0; w < data.n_tokens / data.window.tokens; ++w)
        windows.push_back({at + w * codec->window_bytes(data.window), 5 + data.window.tokens * w});
    }
  }
  return data;
}

struct Partials {
  std::vector<float> max, denom, acc, weights;
  explicit Partials(const HeadShape& shape, std::size_t n_ranges)
      : max(n_ranges * shape.group),
        denom(n_ranges * shape.group),
        acc(n_ranges * shape.group * shape.value_dim),
        weights(n_ranges * shape.group * kRangeTokens) {}
  PartialView of(const HeadShape& shape, std::size_t range) {
    return {&max[range * shape.group], &denom[range * shape.group], &acc[range * shape.group * shape.value_dim]};
  }
};

using Decode = decltype(&attend_decode);

void run_range(Decode decode, const DecodeData& data, int h, const TokenRange& range, Partials& out, std::size_t slot) {
  const std::size_t floats = static_cast<std::size_t>(data.shape.group) * kRangeTokens;
  decode(data.shape, data.head(h), range, data.query, data.scale,
         std::span<float>(out.weights).subspan(slot * floats, floats), kRangeTokens, out.of(data.shape, slot));
}

// Of the last head's first and last range.
void check_decode(const DecodeData& data, const std::vector<TokenRange>& ranges, KernelBenchRow& row) {
  const HeadShape& shape = data.shape;
  for (const TokenRange& range : {ranges.front(), ranges.back()}) {
    Partials got(shape, 1), want(shape, 1);
    run_range(&attend_decode, data, row.n_kv_heads - 1, range, got, 0);
    run_range(&attend_decode_reference, data, row.n_kv_heads - 1, range, want, 0);
    double error = 0.0, size = 0.0;
    for (int g = 0; g < shape.group; ++g) {
      for (int d = 0; d < shape.value_dim; ++d) {
        const int i = g * shape.value_dim + d;
        const double a = got.acc[i] / got.denom[g], b = want.acc[i] / want.denom[g];
        error += (a - b) * (a - b);
        size += b * b;
      }
      for (int t = 0; t < range.end - range.begin; ++t) {
        const std::size_t i = static_cast<std::size_t>(g) * kRangeTokens + t;
        if (want.weights[i] < 1e-20f) continue;
        row.logit_error = std::max<double>(
            row.logit_error, std::abs(got.max[g] + std::log(got.weights[i]) - want.max[g] - std::log(want.weights[i])));
      }
    }
    row.output_error = std::max(row.output_error, std::sqrt(error / size));
  }
}

void bench_decode(const KernelBenchOptions& options, const DecodeData& data, const std::string& target,
                  std::span<const std::uint64_t> read_buffer, KernelBench& bench) {
  KernelBenchRow row{.kernel = "decode " + data.name,
                     .target = target,
                     .shape = data.shape,
                     .n_kv_heads = options.n_decode_heads,
                     .n_tokens = data.n_tokens,
                     .bytes = data.bytes};
  const auto ranges =
      data.codec == nullptr ? cut_ranges(data.n_tokens, 0, 8) : cut_ranges(0, data.n_tokens, data.window.tokens);
  check_decode(data, ranges, row);
  const int n_ranges = static_cast<int>(ranges.size());
  Partials partials(data.shape, static_cast<std::size_t>(options.n_threads));
  std::vector<double> ms, ns, gbs, share, of_f16;
  const double tokens = static_cast<double>(data.n_tokens) * options.n_decode_heads;
  const double f16_bytes = tokens * sizeof(Half) * (data.shape.key_dim + data.shape.value_dim);
  for (int repetition = 0; repetition < options.repetitions; ++repetition) {
    const double read = time_reads(options.n_threads, read_buffer);
    const double bandwidth = static_cast<double>(read_buffer.size_bytes()) / read;
    const double seconds = time_tasks(options.n_threads, options.n_decode_heads * n_ranges, [&](int task, int thread) {
      run_range(&attend_decode, data, task / n_ranges, ranges[task % n_ranges], partials, thread);
    });
    ms.push_back(seconds * 1e3);
    ns.push_back(seconds / tokens * 1e9);
    gbs.push_back(data.bytes / seconds * 1e-9);
    share.push_back(data.bytes / seconds / bandwidth);
    of_f16.push_back(seconds / (f16_bytes / bandwidth));
  }
  row.milliseconds = spread_of(ms);
  row.ns_per_token = spread_of(ns);
  row.gb_per_second = spread_of(gbs);
  row.share_of_bandwidth = spread_of(share);
  row.share_of_f16_time = spread_of(of_f16);
  bench.rows.push_back(row);
}

// One layer of a prompt in chunks, as the engine feeds it; `n` rows.
class PrefillRun {
 public:
  PrefillRun(const KernelBenchOptions& options, int n) : options_(options), n_(n) {
    Rng rng(2);
    const HeadShape& s = options.shape;
    const auto fill = [&](std::vector<float>& x, int per_row) {
      x.resize(static_cast<std::size_t>(n) * options.n_prefill_heads * per_row);
      for (float& value : x) value = static_cast<float>(rng.normal());
    };
    fill(q_, s.group * s.key_dim);
    fill(k_, s.key_dim);
    fill(v_, s.value_dim);
    out_.resize(static_cast<std::size_t>(n) * options.n_prefill_heads * s.group * s.value_dim);
    scale_ = 1.0f / std::sqrt(static_cast<float>(s.key_dim));
  }

  double seconds(PrefillLayer& layer) {
    const HeadShape& s = options_.shape;
    const int heads = options_.n_prefill_heads, n_threads = options_.n_threads;
    layer.begin({}, true, {});
    std::barrier barrier(n_threads);
    return time_tasks(n_threads, n_threads, [&](int thread, int) {
      for (int row = 0; row < n_; row += options_.prefill_chunk) {
        const int rows = std::min(options_.prefill_chunk, n_ - row);
        const std::ptrdiff_t at = std::ptrdiff_t{row} * heads;
        if (thread == 0) layer.next_chunk(rows);
        barrier.arrive_and_wait();
        layer.store(&k_[at * s.key_dim], &v_[at * s.value_dim], rows, thread, n_threads);
        barrier.arrive_and_wait();
        layer.attend(&q_[at * s.group * s.key_dim], rows, scale_, &out_[at * s.group * s.value_dim], thread, n_threads);
        barrier.arrive_and_wait();
      }
    });
  }

  // Against double precision: a few rows' outputs, and the sums of the last head.
  void check(PrefillLayer& layer, KernelBenchRow& row) {
    const HeadShape& s = options_.shape;
    const int heads = options_.n_prefill_heads, h = heads - 1;
    std::vector<double> sums(n_);
    double error = 0.0, size = 0.0;
    for (int r = 0; r < n_; ++r) {
      const std::size_t at = static_cast<std::size_t>(r) * heads + h;
      const ReferenceRow want =
          attend_row_reference(s, nullptr, layer.keys(h), layer.values(h), r + 1,
                               std::span<const float>(q_).subspan(at * s.group * s.key_dim), scale_);
      for (std::size_t i = 0; i < want.probability.size(); ++i)
        sums[i % want.n_tokens] += want.probability[i] / s.group;
      for (std::size_t i = 0; i < want.out.size(); ++i) {
        const double difference = out_[at * s.group * s.value_dim + i] - want.out[i];
        error += difference * difference;
        size += want.out[i] * want.out[i];
      }
    }
    row.output_error = std::sqrt(error / size);
    std::vector<float> got(n_);
    layer.column_sums(h, got, {}, {});
    error = size = 0.0;
    for (int i = 0; i < n_; ++i) {
      error += (got[i] - sums[i]) * (got[i] - sums[i]);
      size += sums[i] * sums[i];
    }
    row.logit_error = std::sqrt(error / size);
  }

 private:
  const KernelBenchOptions& options_;
  int n_;
  float scale_;
  std::vector<float> q_, k_, v_, out_;
};

void bench_prefill(const KernelBenchOptions& options, const std::string& target, KernelBench& bench) {
  const HeadShape& s = options.shape;
  KernelBenchRow row{.kernel = "prefill",
                     .target = target,
                     .shape = s,
                     .n_kv_heads = options.n_prefill_heads,
                     .n_tokens = options.n_tokens};
  {
    constexpr int kChecked = 300;
    PrefillRun run(options, kChecked);
    PrefillLayer layer(s, options.n_prefill_heads, kChecked);
    run.seconds(layer);
    run.check(layer, row);
  }
  PrefillRun run(options, options.n_tokens);
  PrefillLayer layer(s, options.n_prefill_heads, options.n_tokens);
  std::vector<double> ms, ns;
  for (int repetition = 0; repetition < options.repetitions; ++repetition) {
    const double seconds = run.seconds(layer);
    ms.push_back(seconds * 1e3);
    ns.push_back(seconds * 1e9 / options.n_tokens / options.n_prefill_heads);
  }
  row.milliseconds = spread_of(ms);
  row.ns_per_token = spread_of(ns);
  bench.rows.push_back(row);
}

}  // namespace

KernelBench bench_kernels(const KernelBenchOptions& options) {
  const std::string before(simd_target());
  std::vector<std::string> targets = options.targets;
  if (targets.empty())
    for (const std::string_view name : simd_targets())
      if (name != "reference") targets.emplace_back(name);
  KernelBench bench;
  const HeadShape& shape = options.shape;
  const std::size_t read_words = static_cast<std::size_t>(options.n_tokens) * options.n_decode_heads *
                                 (shape.key_dim + shape.value_dim) * sizeof(Half) / sizeof(std::uint64_t);
  const std::vector<std::uint64_t> read_buffer(std::max<std::size_t>(read_words, 1 << 20), 1);
  std::vector<double> reads;
  for (int repetition = 0; repetition < options.repetitions; ++repetition)
    reads.push_back(static_cast<double>(read_buffer.size() * 8) / time_reads(options.n_threads, read_buffer) * 1e-9);
  bench.read_gb_per_second = spread_of(reads);
  const auto for_targets = [&](const auto& body) {
    for (const std::string& target : targets) {
      QEVICT_CHECK(force_simd_target(target), "the targets to bench are targets of this machine");
      body(target);
    }
  };
  if (options.decode) {
    const auto bench_data = [&](const DecodeData& data) {
      for_targets([&](const std::string& target) { bench_decode(options, data, target, read_buffer, bench); });
    };
    bench_data(make_data(options, nullptr, false));
    bench_data(make_data(options, nullptr, true));
    for (const std::string& name : options.codecs) {
      const CodecRow* codec = find_codec(name);
      QEVICT_CHECK(codec != nullptr, "the codecs to bench exist");
      if (!codec->supports({codec->window_tokens, shape.key_dim, shape.value_dim})) continue;
      bench_data(make_data(options, codec, false));
    }
  }
  if (options.prefill) for_targets([&](const std::string& target) { bench_prefill(options, target, bench); });
  force_simd_target(before);
  return bench;
}

}  // namespace qevict
