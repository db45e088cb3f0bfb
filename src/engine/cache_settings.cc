#include "engine/cache_settings.h"

#include <algorithm>
#include <string>

#include "base/check.h"

namespace qevict {
namespace {

template <class Names>
std::string joined(const Names& names) {
  std::string result;
  for (const auto& name : names) {
    if (!result.empty()) result += ", ";
    result += name;
  }
  return result;
}

// Share of a window's worth that codes lose, for Spending::by_gain (docs/design.md, with the sweep).
constexpr double kDefaultQuantizationLoss = 0.2;
constexpr double kDefaultCoverage = 0.3;

std::string method_names() {
  std::vector<std::string_view> names;
  for (const Method& method : methods()) names.push_back(method.name);
  return joined(names);
}

Result<double> in_range(const char* name, const std::optional<double>& given, double otherwise, double low,
                        double high) {
  const double value = given.value_or(otherwise);
  if (!(value >= low && value <= high)) return invalid("{} must be between {} and {}, got {}", name, low, high, value);
  return value;
}

// The row of a table that `given` or else the method names; refused if there is none.
template <class Row>
Result<const Row*> row_named(const char* what, const std::optional<std::string>& given, std::string_view otherwise,
                             const Row* (*find)(std::string_view), std::span<const std::string_view> known) {
  const std::string name = given.value_or(std::string(otherwise));
  if (const Row* row = find(name)) return row;
  return invalid("unknown KV {} \"{}\": the {}s are {}", what, name, what, joined(known));
}

// A value the user may have set, or the method's own; refused outside [low, high].
Result<int> in_range(const char* name, const std::optional<int>& given, int otherwise, int low, int high) {
  const int value = given.value_or(otherwise);
  if (value < low || value > high) return invalid("{} must be between {} and {}, got {}", name, low, high, value);
  return value;
}

const char* name_of(BudgetBase base) {
  switch (base) {
    case BudgetBase::context:
      return "context";
    case BudgetBase::request:
      return "request";
    case BudgetBase::prompt:
      return "prompt";
    case BudgetBase::current:
      break;
  }
  return "current";
}

}  // namespace

Result<CacheSettings> CacheSettings::from(const CacheConfig& config, int n_ctx) {
  CacheSettings settings;
  settings.method = find_method(config.method);
  if (settings.method == nullptr) {
    return invalid("unknown KV method \"{}\": the methods are {}", config.method, method_names());
  }
  const Method& method = *settings.method;
  const bool changes_routing = config.window_tokens || config.sink_tokens || config.recent ||
                               config.quantized_per_mille || config.interval_steps || config.ranking || config.decay ||
                               config.codec || config.allocator || config.weight || config.floor ||
                               config.quantization_loss || config.coverage || config.promotion;
  if (!method.compresses && changes_routing) {
    return invalid(
        "KV method \"{}\" keeps everything: windows, sinks, recent, shares, intervals, codecs, rankings, allocators "
        "and promotion "
        "do not "
        "apply to it",
        method.name);
  }
  if (!method.compresses && (config.budget.ratio || config.budget.bytes) && config.budget.ratio.value_or(0) != 1.0) {
    return invalid(
        "KV method \"{}\" keeps everything and takes no budget: choose another method, or leave the budget out",
        method.name);
  }
  if (method.quantizes_everything && (config.budget.ratio || config.budget.bytes || config.budget_base)) {
    return invalid(
        "KV method \"{}\" keeps every token, at its codec's bytes, and takes no budget: choose another method, or "
        "leave the budget out",
        method.name);
  }
  if (config.budget.ratio && config.budget.bytes) return invalid("give the KV budget as a share or as bytes, not both");
  if (config.budget.ratio && !(*config.budget.ratio > 0 && *config.budget.ratio <= 1)) {
    return invalid("a KV budget must be above 0% and at most 100%, got {}%", *config.budget.ratio * 100);
  }
  if (config.budget.bytes && *config.budget.bytes == 0) return invalid("a KV budget must be above 0 bytes");
  if (config.budget.bytes && config.budget_base) {
    return invalid("a budget base says what a share refers to: it does not go with a budget of {} bytes",
                   *config.budget.bytes);
  }

  const Result<int> window = in_range("the KV window", config.window_tokens, method.window_tokens, 1, 256);
  const Result<int> sinks = in_range("KV sinks", config.sink_tokens, method.sink_tokens, 0, 128);
  const Result<int> share =
      in_range("the quantized share (per mille)", config.quantized_per_mille, method.quantized_per_mille, 0, 1000);
  const Result<int> interval = in_range("the KV interval", config.interval_steps, method.interval_steps, 1, 4096);
  for (const Result<int>* value : {&window, &sinks, &share, &interval}) {
    if (!*value) return value->error();
  }
  if (*share > 0 && method.codec.empty()) {
    return invalid("KV method \"{}\" has no quantized tier: a quantized share does not apply to it", method.name);
  }
  if (config.promotion && method.codec.empty()) {
    return invalid("KV method \"{}\" has no quantized tier: promotion does not apply to it", method.name);
  }

  LayoutRule& rule = settings.rule;
  rule.zones = {.sinks = *sinks, .window = *window, .recent = 0};
  rule.recent_tokens = method.recent_tokens;
  rule.recent_per_mille = method.recent_per_mille;
  rule.everything = method.quantizes_everything;
  rule.in_cache_positions = method.in_cache_positions;
  rule.interval = *interval;
  rule.max_windows = n_ctx / *window + 1;
  rule.scores = false;
  settings.recent = config.recent.value_or(Recent{});
  if (settings.recent.kind == Recent::Kind::tokens && settings.recent.value < 1) {
    return invalid("the recent region must hold at least 1 token, got {}", settings.recent.value);
  }
  settings.budget = config.budget;
  settings.budget_base = config.budget_base;
  if (!method.compresses) return settings;

  if (!method.codec.empty()) {
    const Result<const CodecRow*> codec = row_named("codec", config.codec, method.codec, &find_codec, codec_names());
    if (!codec) return codec.error();
    rule.codec = *codec;
    rule.quantized_per_mille = *share;
  } else if (config.codec) {
    return invalid("KV method \"{}\" has no quantized tier: a codec does not apply to it", method.name);
  }
  settings.promotion = config.promotion.value_or(method.promotion);
  // Without promotion no window ever needs its codes beside its f16 values.
  rule.ledger = settings.promotion ? Ledger::kept : Ledger::none;

  const Result<const RankingRow*> ranking =
      row_named("ranking", config.ranking, method.ranking, &find_ranking, ranking_names());
  if (!ranking) return ranking.error();
  settings.ranking = *ranking;
  settings.scores = settings.ranking->rule;
  if (config.decay && !(settings.scores.kept && settings.scores.attention)) {
    return invalid("KV ranking \"{}\" follows no attention: a decay does not apply to it", settings.ranking->name);
  }
  if (config.decay) {  // a ranking's own may be 0: the newest row alone
    const Result<double> decay = in_range("the KV decay", config.decay, 1.0, 1e-6, 1.0);
    if (!decay) return decay.error();
    settings.scores.decay = static_cast<float>(*decay);
  }
  rule.scores = settings.scores.kept;
  rule.score_power = settings.scores.power;
  rule.query_rows = settings.ranking->query_rows;
  const Result<const WeightRow*> weight =
      row_named("weight", config.weight, method.weight, &find_weight, weight_names());
  if (!weight) return weight.error();
  settings.weight = *weight;
  const bool weighable = (settings.scores.kept && settings.scores.attention) || settings.ranking->query_rows > 0;
  if (!weighable && !config.weight) settings.weight = find_weight("none");  // the method's goes with its own ranking
  rule.weights = !settings.weight->none;
  settings.first_stage_per_mille = rule.weights ? method.first_stage_per_mille : 0;
  if (rule.weights && !weighable) {
    return invalid("KV ranking \"{}\" follows no attention: a value weight does not apply to it",
                   settings.ranking->name);
  }

  const Result<const AllocatorRow*> allocator =
      row_named("allocator", config.allocator, method.allocator, &find_allocator, allocator_names());
  if (!allocator) return allocator.error();
  settings.allocator = *allocator;
  rule.ragged = settings.allocator->scope != Scope::head;
  // Scores that are made anew must stand where layers to come are weighed against earlier ones.
  if (settings.ranking->observe != nullptr && settings.allocator->scope == Scope::model &&
      settings.allocator->takes_floor())
    rule.scores = true;
  if (config.floor && !settings.allocator->takes_floor()) {
    return invalid("KV allocator \"{}\" gives every head the same: a floor does not apply to it",
                   settings.allocator->name);
  }
  const Result<double> floor = in_range("the KV floor", config.floor, method.floor, 0.0, 1.0);
  if (!floor) return floor.error();
  settings.floor = *floor;

  settings.spending = {
      .costs = {},
      .by_gain = rule.codec != nullptr && !config.quantized_per_mille && method.spending == Spending::by_gain,
      .quantized_per_mille = rule.quantized_per_mille};
  if (config.quantization_loss && !settings.spending.by_gain) {
    return invalid("the quantized share is fixed: a quantization loss does not apply to it");
  }
  const Result<double> loss =
      in_range("the quantization loss", config.quantization_loss, kDefaultQuantizationLoss, 0.0, 1.0);
  if (!loss) return loss.error();
  settings.spending.loss = *loss;
  if (config.coverage && !settings.spending.by_gain) {
    return invalid("the quantized share is fixed: a worth of coverage does not apply to it");
  }
  const Result<double> coverage = in_range("the worth of coverage", config.coverage, kDefaultCoverage, 0.0, 1000.0);
  if (!coverage) return coverage.error();
  settings.spending.coverage = *coverage;
  return settings;
}

Result<void> CacheSettings::check_shape(const CacheShape& shape) const {
  if (rule.codec == nullptr || rule.codec->supports(rule.window_shape(shape))) return {};
  return invalid(
      "KV codec \"{}\" needs {}, and cannot take a KV window of {} with {} channels of keys and {} of values: choose "
      "another codec or window",
      rule.codec->name, rule.codec->needs, rule.zones.window, shape.key_dim, shape.value_dim);
}

std::vector<Setting> CacheSettings::list() const {
  std::vector<Setting> result = {{"kv-method", std::string(method->name)}};
  if (!method->compresses) return result;
  const auto add = [&](const char* name, std::string value) { result.push_back({name, std::move(value)}); };
  if (!rule.everything) add("kv-budget", budget.to_string());
  if (!budget.bytes && !rule.everything) {
    const bool by_default = !budget.ratio && !budget_base;
    add("budget-base", budget_base  ? name_of(*budget_base)
                       : by_default ? "context"
                                    : "request, or current if the length is unknown");
  }
  add("kv-window", std::to_string(rule.zones.window));
  add("kv-sinks", std::to_string(rule.zones.sinks));
  add("kv-recent",
      recent.kind == Recent::Kind::automatic
          ? fmt::format("auto: at most {}, and {}% of the bytes", rule.recent_tokens, rule.recent_per_mille / 10.0)
          : recent.to_string());
  if (rule.codec != nullptr) {
    add("kv-codec", std::string(rule.codec->name));
    add("kv-quant-share", spending.by_gain ? "by gain" : fmt::format("{}%", rule.quantized_per_mille / 10.0));
    if (spending.by_gain) add("kv-quant-loss", fmt::format("{}", spending.loss));
    if (spending.by_gain) add("kv-coverage", fmt::format("{}", spending.coverage));
    add("promotion", promotion ? "on" : "off");
  }
  add("kv-interval", std::to_string(rule.interval));
  add("kv-ranking", std::string(ranking->name));
  if (scores.kept) add("kv-decay", fmt::format("{}", scores.decay));
  if (rule.weights) add("kv-weight", std::string(weight->name));
  if (first_stage_per_mille > 0) add("first-stage", fmt::format("{}%", first_stage_per_mille / 10.0));
  if (rule.query_rows > 0) add("observed-queries", std::to_string(rule.query_rows));
  add("kv-allocator", std::string(allocator->name));
  if (allocator->takes_floor()) add("kv-floor", fmt::format("{}", floor));
  if (rule.in_cache_positions) add("positions", "in the cache");
  return result;
}

MethodBytes method_bytes(const Method& method, int head_dim, int query_heads) {
  const CacheShape shape{
      .n_layers = 1, .n_kv_heads = 1, .key_dim = head_dim, .value_dim = head_dim, .group = query_heads};
  const auto f16 = static_cast<double>(shape.token_bytes());
  if (!method.compresses) return {.full = f16, .newest = f16};
  const Result<CacheSettings> settings =
      CacheSettings::from({.method = std::string(method.name), .budget = {}}, 1 << 20);
  QEVICT_CHECK(settings, "a method's own row is valid");
  const LayoutRule& rule = settings->rule;
  const HeadLayout layout = plan_everything(shape, rule, settings->recent, 1000);  // slots do not depend on how many
  const double window = rule.zones.window;
  return {.full = rule.everything ? 0 : static_cast<double>(layout.full_slot_bytes) / window,
          .quantized = static_cast<double>(layout.quantized_slot_bytes) / window,
          .per_head = rule.per_head_bytes(shape),
          .newest = f16 + static_cast<double>(rule.score_bytes())};
}

}  // namespace qevict
