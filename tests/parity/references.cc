#include "parity/references.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>
#include <stdexcept>

#include "model/f32_copy.h"
#include "support/scratch.h"

namespace qevict {
namespace {

// FNV-1a over the ends of a file and its size: enough to tell models apart.
std::string key_of(const std::string& path) {
  std::uint64_t hash = 14695981039346656037u;
  std::ifstream file(path, std::ios::binary);
  const auto size = static_cast<std::streamoff>(std::filesystem::file_size(path));
  std::vector<char> part(static_cast<std::size_t>(std::min<std::streamoff>(size, 1 << 20)));
  for (const std::streamoff at : {std::streamoff{0}, size - static_cast<std::streamoff>(part.size())}) {
    file.seekg(at);
    file.read(part.data(), static_cast<std::streamsize>(part.size()));
    for (const char byte : part) hash = (hash ^ static_cast<unsigned char>(byte)) * 1099511628211u;
  }
  std::ostringstream text;
  text << size << '-' << std::hex << hash;
  return text.str();
}

std::vector<double> log_softmax(std::span<const float> logits) {
  const double most = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - most);
  std::vector<double> result;
  for (const float logit : logits) result.push_back(static_cast<double>(logit) - most - std::log(sum));
  return result;
}

}  // namespace

std::string f32_copy() {
  const std::string model = testing::test_model();
  if (model.empty()) throw std::runtime_error("QEVICT_TEST_MODEL names no model");
  const char* scratch = std::getenv("QEVICT_TEST_SCRATCH");
  const std::filesystem::path folder =
      scratch != nullptr ? std::filesystem::path(scratch) : std::filesystem::temp_directory_path();
  const std::filesystem::path copy = folder / ("f32-" + key_of(model) + ".gguf");
  if (!std::filesystem::exists(copy)) {
    std::filesystem::create_directories(folder);
    const std::filesystem::path part = copy.string() + "." + std::to_string(::getpid());
    if (const Result<void> written = write_f32_copy(model, part.string()); !written) {
      throw std::runtime_error(written.error().message);
    }
    std::filesystem::rename(part, copy);
  }
  return copy.string();
}

const Model& f32_model() {
  static const Model model = [] {
    Result<Model> loaded = Model::load(f32_copy());
    if (!loaded) throw std::runtime_error(loaded.error().message);
    return *std::move(loaded);
  }();
  return model;
}

std::span<const Token> prose() {
  static const std::vector<Token> tokens = [] {
    std::ifstream file(QEVICT_TEST_DATA "/prose.txt");
    std::ostringstream text;
    text << file.rdbuf();
    Result<std::vector<Token>> result = f32_model().tokenize(text.str(), true, false);
    if (!result) throw std::runtime_error(result.error().message);
    return *result;
  }();
  return tokens;
}

Session open_session(const Model& model, const SessionOptions& options) {
  Result<Session> session = Session::create(model, options);
  if (!session) throw std::runtime_error(session.error().message);
  return *std::move(session);
}

Logits teacher_forced(Session& session, std::span<const Token> prompt, std::span<const Token> tokens) {
  Logits logits;
  Result<void> fed = session.prefill(prompt, static_cast<int>(tokens.size()));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (!fed) throw std::runtime_error(fed.error().message);
    const std::span<const float> now = session.logits();
    logits.emplace_back(now.begin(), now.end());
    if (i + 1 < tokens.size()) fed = session.decode(tokens[i]);
  }
  return logits;
}

std::size_t best_of(std::span<const float> logits) {
  return static_cast<std::size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

float lead_of(std::span<const float> logits) {
  std::array<float, 2> best{-INFINITY, -INFINITY};
  for (const float logit : logits) {
    if (logit > best[0]) {
      best = {logit, best[0]};
    } else if (logit > best[1]) {
      best[1] = logit;
    }
  }
  return best[0] - best[1];
}

Difference difference(const Logits& p, const Logits& q) {
  EXPECT_EQ(p.size(), q.size());
  Difference result;
  bool same = true;
  for (std::size_t row = 0; row < p.size(); ++row) {
    const std::vector<double> log_p = log_softmax(p[row]);
    const std::vector<double> log_q = log_softmax(q[row]);
    double kl = 0;
    for (std::size_t i = 0; i < log_p.size(); ++i) {
      kl += std::exp(log_p[i]) * (log_p[i] - log_q[i]);
      result.max_logit = std::max(result.max_logit, std::abs(p[row][i] - q[row][i]));
    }
    result.mean_kl += std::max(kl, 0.0) / static_cast<double>(p.size());
    if (same && best_of(p[row]) != best_of(q[row])) {
      same = false;
      result.lead = lead_of(p[row]);
    }
    result.same_top += same;
  }
  return result;
}

}  // namespace qevict
