#include "model/keys.h"

#include <cmath>

#include "base/check.h"

namespace qevict {

int Keys::checked(std::string_view suffix, std::int64_t value, int low, int high) {
  if (value >= low && value <= high) return static_cast<int>(value);
  fail(io_error("model file '{}' is damaged or unsupported: key '{}' is {}, expected {} to {}", file_.path(),
                full(suffix), value, low, high));
  return low;
}

int Keys::integer(std::string_view suffix, int low, int high, std::optional<int> fallback) {
  auto value = file_.integer(full(suffix));
  if (!value) {
    fail(std::move(value).error());
  } else if (value->has_value()) {
    return checked(suffix, **value, low, high);
  } else if (!fallback) {
    fail(io_error("model file '{}' is incomplete: key '{}' is missing", file_.path(), full(suffix)));
  }
  return fallback.value_or(low);
}

int Keys::per_layer(std::string_view suffix, int n_layers, int low, int high, std::optional<int> fallback) {
  auto values = file_.integers(full(suffix));
  if (!values) {
    fail(std::move(values).error());
    return low;
  }
  if (!values->has_value()) return integer(suffix, low, high, fallback);
  const std::vector<std::int64_t>& layers = **values;
  if (layers.empty()) {
    fail(io_error("model file '{}' is damaged: key '{}' is an empty array", file_.path(), full(suffix)));
    return low;
  }
  if (layers.size() > 1 && layers.size() < static_cast<std::size_t>(n_layers))
    fail(io_error("model file '{}' is damaged: key '{}' has {} entries for {} layers", file_.path(), full(suffix),
                  layers.size(), n_layers));
  for (const std::int64_t layer : layers)
    if (layer != layers.front())
      fail(unsupported("model '{}' has layers of different kinds ('{}' is {} and {}); supported: all layers alike",
                       file_.path(), full(suffix), layers.front(), layer));
  return checked(suffix, layers.front(), low, high);
}

float Keys::real(std::string_view suffix, std::optional<float> fallback) {
  auto value = file_.real(full(suffix));
  if (!value) {
    fail(std::move(value).error());
  } else if (value->has_value()) {
    const auto narrowed = static_cast<float>(**value);
    if (std::isfinite(narrowed)) return narrowed;
    fail(io_error("model file '{}' is damaged: key '{}' is {}", file_.path(), full(suffix), **value));
  } else if (!fallback) {
    fail(io_error("model file '{}' is incomplete: key '{}' is missing", file_.path(), full(suffix)));
  }
  return fallback.value_or(1.0f);
}

std::string Keys::text(std::string_view suffix, std::string fallback) {
  auto value = file_.text(full(suffix));
  if (!value) {
    fail(std::move(value).error());
    return fallback;
  }
  return value->value_or(std::move(fallback));
}

bool Keys::boolean(std::string_view suffix, bool fallback) {
  auto value = file_.boolean(full(suffix));
  if (!value) {
    fail(std::move(value).error());
    return fallback;
  }
  return value->value_or(fallback);
}

}  // namespace qevict
