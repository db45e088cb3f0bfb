#include "bench_run.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <random>
#include <thread>

#include "terminal.h"

namespace qevict::app {
namespace {

constexpr double kStepWork = 3;  // a decoded token takes about as long as that many of a prompt

int decode_fill(int depth) { return std::max(1, depth); }  // decoding needs something to go on from

}  // namespace

std::int64_t BenchPlan::context_tokens(int depth) const {
  if (after_prompt) return std::int64_t{depth} + n_prompt + n_gen;
  const std::int64_t steps = keep_fill ? std::int64_t{n_gen} * (repetitions + 1) : n_gen;
  return std::max<std::int64_t>(std::int64_t{depth} + n_prompt, n_gen > 0 ? decode_fill(depth) + steps : 0);
}

std::int64_t BenchPlan::longest_context() const { return context_tokens(std::ranges::max(depths)); }

std::vector<Token> random_tokens(int count, int n_vocab) {
  std::mt19937 random(1);
  std::uniform_int_distribution<Token> any(0, n_vocab - 1);
  std::vector<Token> tokens(static_cast<std::size_t>(count));
  for (Token& token : tokens) token = any(random);
  return tokens;
}

void wait_until_quiet() {
  constexpr auto kSleep = std::chrono::milliseconds(10);
  constexpr int kMostSleeps = 500;
  for (int i = 0; i < kMostSleeps && !interrupted(); ++i) {
    const std::clock_t before = std::clock();  // processor time of all threads
    std::this_thread::sleep_for(kSleep);
    if (std::clock() - before < CLOCKS_PER_SEC / 1000) return;
  }
}

BenchRun::BenchRun(const BenchPlan& plan, int n_vocab, std::vector<std::unique_ptr<BenchEngine>> engines)
    : plan_(plan),
      engines_(std::move(engines)),
      kept_depth_(engines_.size(), -1),
      tokens_(random_tokens(static_cast<int>(plan.longest_context()), n_vocab)) {
  for (const int depth : plan.depths)
    work_ += work_of(depth) * static_cast<double>(engines_.size()) * (plan.repetitions + 1);
}

// Of one repetition of one engine.
double BenchRun::work_of(int depth) const {
  double work = 0;
  if (plan_.n_prompt > 0) work += depth + plan_.n_prompt;
  if (plan_.n_gen > 0) work += (plan_.after_prompt ? 0 : depth) + kStepWork * plan_.n_gen;
  return work;
}

Result<std::vector<Measured>> BenchRun::at_depth(int depth) {
  std::vector<Measured> all;
  for (const auto& engine : engines_) all.push_back({.label = engine->label(), .samples = {}, .row = Json::object()});
  std::ranges::fill(kept_depth_, -1);
  int completed = -1;  // the first is thrown away
  for (std::vector<Measured> next = all; completed < plan_.repetitions; ++completed, all = next) {
    const Result<void> measured = repeat(depth, completed >= 0, next);
    if (measured) continue;
    if (completed < 1 || measured.error().kind != Error::Kind::interrupted) return measured.error();
    break;
  }
  for (Measured& one : all) {
    Json row = {{"engine", one.label.engine},
                {"method", one.label.method},
                {"kv_type", one.label.kv_type},
                {"flash_attn", one.label.flash_attn},
                {"depth", depth},
                {"n_prompt", plan_.n_prompt},
                {"n_gen", plan_.n_gen},
                {"repetitions", completed}};
    if (plan_.n_gen > 0) {
      row["decode_depth"] = plan_.after_prompt ? depth + plan_.n_prompt : depth;
      row["keep_fill"] = plan_.keep_fill;
    }
    one.samples.add_fields(row);
    row.update(one.row);
    one.row = std::move(row);
  }
  return all;
}

// Every engine once; samples are added to `all` if they count.
Result<void> BenchRun::repeat(int depth, bool counts, std::vector<Measured>& all) {
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    const double before = work_done_;
    const Result<void> measured = measure(i, depth, counts ? &all[i].samples : nullptr);
    if (!measured) return measured.error();
    work_done_ = before + work_of(depth);
    all[i].row = Json::object();
    engines_[i]->add_fields(all[i].row);
  }
  return {};
}

BenchProgress BenchRun::progress_over(double tokens) {
  return [this, from = work_done_, tokens](double share) {
    bar_.update(static_cast<std::int64_t>((from + share * tokens) * 16), static_cast<std::int64_t>(work_ * 16));
    return !interrupted();
  };
}

Result<void> BenchRun::measure(std::size_t engine, int depth, Samples* samples) {
  wait_until_quiet();
  if (plan_.n_prompt > 0) {
    if (const Result<void> read = measure_prompt(*engines_[engine], depth, samples); !read) return read.error();
  }
  if (plan_.n_gen > 0) return measure_decode(engine, depth, samples);
  return {};
}

Result<void> BenchRun::measure_prompt(BenchEngine& engine, int depth, Samples* samples) {
  const std::span<const Token> tokens = tokens_;
  const int max_new = plan_.after_prompt ? plan_.n_gen : 0;
  // The budget is that of the whole request: what follows the fill counts as new tokens.
  const auto filled =
      engine.fill(tokens.first(static_cast<std::size_t>(depth)), plan_.n_prompt + max_new, progress_over(depth));
  if (!filled) return filled.error();
  work_done_ += depth;
  const Result<PromptTimes> times =
      engine.read_prompt(tokens.subspan(static_cast<std::size_t>(depth), static_cast<std::size_t>(plan_.n_prompt)),
                         max_new, progress_over(plan_.n_prompt));
  if (!times) return times.error();
  work_done_ += plan_.n_prompt;
  if (samples != nullptr) samples->add_prompt(*times, plan_.n_prompt);
  return {};
}

Result<void> BenchRun::measure_decode(std::size_t index, int depth, Samples* samples) {
  BenchEngine& engine = *engines_[index];
  const std::span<const Token> tokens = tokens_;
  std::size_t at = static_cast<std::size_t>(depth + plan_.n_prompt);
  if (!plan_.after_prompt) {
    at = static_cast<std::size_t>(decode_fill(depth));
    const bool kept = plan_.keep_fill && kept_depth_[index] == depth && !engine.goes_back();
    if (!kept) {
      const int steps = plan_.keep_fill ? plan_.n_gen * (plan_.repetitions + 1) : plan_.n_gen;
      const auto filled = engine.fill(tokens.first(at), steps, progress_over(depth));
      if (!filled) return filled.error();
      if (samples != nullptr && depth > 0 && *filled) samples->fill_ms.push_back(**filled);
      kept_depth_[index] = depth;
    }
    work_done_ += depth;
  }
  const Result<DecodeTimes> times =
      engine.decode(tokens.subspan(at, static_cast<std::size_t>(plan_.n_gen)), progress_over(kStepWork * plan_.n_gen));
  if (!times) return times.error();
  if (samples != nullptr) samples->add_decode(*times);
  return {};
}

}  // namespace qevict::app
