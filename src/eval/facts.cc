#include "eval/facts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/rng.h"
#include "qevict/lock_step.h"

namespace qevict {
namespace {

// {}: the name.
constexpr std::array<std::string_view, 8> kTemplates = {
    "The door code of {} is",
    "The account number of {} is",
    "The telephone number of {} is",
    "The library card of {} has the number",
    "The lottery ticket of {} had the number",
    "The passport of {} carries the number",
    "The policy number of {} is",
    "The parcel for {} was sent under the number",
};
constexpr std::array<std::string_view, 20> kBegins = {"Ba", "Ce", "Do", "Fa", "Gri", "Ha", "Je", "Ka", "Lo", "Mi",
                                                      "Ne", "O",  "Pe", "Ro", "Sa",  "Ta", "U",  "Ve", "Wi", "Zo"};
constexpr std::array<std::string_view, 16> kMiddles = {"l",  "r",  "nd", "mb", "rt", "sk", "v",  "n",
                                                       "ll", "rr", "d",  "st", "gg", "m",  "lk", "z"};
constexpr std::array<std::string_view, 12> kEnds = {"a",  "o",   "in",  "ek",  "ur",  "is",
                                                    "an", "eth", "old", "wen", "ick", "ora"};

template <class Parts>
std::string_view pick(Rng& rng, const Parts& parts) {
  return parts[rng.below(parts.size())];
}

std::string name_part(Rng& rng) {
  std::string name(pick(rng, kBegins));
  name += pick(rng, kMiddles);
  name += pick(rng, kEnds);
  return name;
}

// The end of a sentence lies between the two pieces.
bool sentence_ends(const std::string& piece, const std::string& next) {
  const auto last = piece.find_last_not_of(" \n");
  return last != std::string::npos && std::string_view(".!?").find(piece[last]) != std::string_view::npos &&
         !next.empty() && (next.front() == ' ' || next.front() == '\n' || last + 1 < piece.size());
}

Result<FactQuestion> make_question(const Fact& fact, const FactsVocabulary& vocabulary) {
  const std::string before = "\n\n" + fact.words + " ";
  const Result<std::vector<Token>> tokens = vocabulary.tokenize(before + fact.number);
  if (!tokens) return tokens.error();
  // The answer is the shortest end that spells the number; a first piece may have a space more than the text.
  std::size_t bytes = 0;
  auto first = tokens->end();
  while (first != tokens->begin() && bytes < fact.number.size()) bytes += vocabulary.piece(*--first).size();
  FactQuestion question{.cue = {tokens->begin(), first}, .answer = {first, tokens->end()}};
  QEVICT_CHECK(!question.answer.empty() && !question.cue.empty(), "tokens spell the text they were made from");
  return question;
}

constexpr double kReadingShare = 0.5;  // of the time of a reading with its questions

struct Answers {
  std::vector<double> digits, leading, whole, nll;
  std::vector<std::vector<double>> parts = std::vector<std::vector<double>>(4);
};

struct Run {
  Answers answers;
  FactsResult result;
};

// Asks all caches one question; `last` leaves out the token nobody's logits depend on.
Result<void> ask(LockStep& all, std::span<Run> runs, const FactQuestion& question, std::size_t part, bool last) {
  for (const Token token : question.cue) {
    if (Result<void> fed = all.decode(token); !fed) return fed;
  }
  std::vector<std::vector<Token>> chosen(runs.size());
  std::vector<double> nll(runs.size());
  for (std::size_t i = 0; i < question.answer.size(); ++i) {
    for (std::size_t r = 0; r < runs.size(); ++r) {
      const std::span<const float> logits = all.logits(r);
      chosen[r].push_back(static_cast<Token>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
      nll[r] += nll_of(logits, question.answer[i]);
    }
    if (last && i + 1 == question.answer.size()) break;
    if (Result<void> fed = all.decode(question.answer[i]); !fed) return fed;
  }
  for (std::size_t r = 0; r < runs.size(); ++r) {
    const FactScore score = score_answer(question.answer, chosen[r]);
    Answers& answers = runs[r].answers;
    answers.digits.push_back(score.digits);
    answers.leading.push_back(score.leading);
    answers.whole.push_back(score.whole ? 1.0 : 0.0);
    answers.nll.push_back(nll[r] / static_cast<double>(question.answer.size()));
    answers.parts[part].push_back(score.digits);
    runs[r].result.n_digit_tokens += static_cast<std::int64_t>(question.answer.size());
  }
  return {};
}

FactsResult finish(Run& run, const Answers& full) {
  FactsResult& result = run.result;
  const Answers& answers = run.answers;
  result.n_facts = static_cast<std::int64_t>(answers.digits.size());
  result.digits = mean_of(answers.digits);
  result.leading = mean_of(answers.leading);
  result.whole = mean_of(answers.whole);
  result.nll = mean_of(answers.nll);
  std::vector<double> differences;
  for (std::size_t i = 0; i < answers.digits.size(); ++i) differences.push_back(answers.digits[i] - full.digits[i]);
  result.digits_minus_full = mean_of(differences);
  for (const std::vector<double>& part : answers.parts) {
    if (!part.empty()) result.digits_parts.push_back(mean_of(part).value);
  }
  return result;
}

std::size_t n_tokens(const FactQuestion& question) { return question.cue.size() + question.answer.size(); }

}  // namespace

std::vector<Fact> make_facts(int n, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<Fact> facts;
  std::set<std::string> used;
  while (static_cast<int>(facts.size()) < n) {
    const std::string_view words = pick(rng, kTemplates);
    const std::string first = name_part(rng);
    const std::string name = first + " " + name_part(rng);
    std::string number(1, static_cast<char>('0' + rng.between(1, 9)));
    const int n_digits = rng.between(7, 8);
    while (static_cast<int>(number.size()) < n_digits) number += static_cast<char>('0' + rng.between(0, 9));
    if (!used.insert(name).second || !used.insert(number).second) continue;
    const std::size_t hole = words.find("{}");
    facts.push_back(
        {.words = std::string(words.substr(0, hole)) + name + std::string(words.substr(hole + 2)), .number = number});
  }
  return facts;
}

Result<FactsDocument> make_facts_document(std::span<const Token> start, std::span<const Token> filler,
                                          int prompt_tokens, std::span<const Fact> facts,
                                          const FactsVocabulary& vocabulary) {
  QEVICT_CHECK(!facts.empty() && filler.size() >= static_cast<std::size_t>(prompt_tokens),
               "there are facts, and filler for a whole prompt");
  FactsDocument document;
  std::vector<std::vector<Token>> statements;
  std::size_t fixed = start.size();
  for (const Fact& fact : facts) {
    Result<std::vector<Token>> statement = vocabulary.tokenize(" " + fact.statement());
    if (!statement) return statement.error();
    fixed += statement->size();
    statements.push_back(*std::move(statement));
    Result<FactQuestion> question = make_question(fact, vocabulary);
    if (!question) return question.error();
    document.questions.push_back(*std::move(question));
  }
  const auto n = static_cast<std::size_t>(prompt_tokens);
  if (n < 2 * fixed) {
    return invalid("{} facts take {} of {} tokens of prompt, more than half: give fewer facts or a larger context",
                   facts.size(), fixed, prompt_tokens);
  }
  const std::size_t n_filler = n - fixed;
  document.prompt.assign(start.begin(), start.end());
  std::size_t at = 0;  // of the filler
  for (std::size_t i = 0; i < facts.size(); ++i) {
    const std::size_t middle = n_filler * (2 * i + 1) / (2 * facts.size());
    const std::size_t end = n_filler * (i + 1) / facts.size();
    std::size_t place = middle;
    while (place > 0 && place < end &&
           !sentence_ends(vocabulary.piece(filler[place - 1]), vocabulary.piece(filler[place]))) {
      ++place;
    }
    if (place == end) place = middle;  // no sentence ends here
    document.prompt.insert(document.prompt.end(), filler.begin() + static_cast<std::ptrdiff_t>(at),
                           filler.begin() + static_cast<std::ptrdiff_t>(place));
    document.prompt.insert(document.prompt.end(), statements[i].begin(), statements[i].end());
    at = place;
  }
  document.prompt.insert(document.prompt.end(), filler.begin() + static_cast<std::ptrdiff_t>(at),
                         filler.begin() + static_cast<std::ptrdiff_t>(n_filler));
  QEVICT_CHECK(document.prompt.size() == n, "the prompt has the tokens asked for");
  return document;
}

FactScore score_answer(std::span<const Token> answer, std::span<const Token> chosen) {
  QEVICT_CHECK(!answer.empty() && answer.size() == chosen.size(), "one choice for each token of the answer");
  const auto n = static_cast<double>(answer.size());
  const auto right = std::inner_product(answer.begin(), answer.end(), chosen.begin(), 0, std::plus<>{},
                                        [](Token a, Token b) { return a == b ? 1 : 0; });
  const auto leading = std::mismatch(answer.begin(), answer.end(), chosen.begin()).first - answer.begin();
  return {.digits = right / n,
          .leading = static_cast<double>(leading) / n,
          .whole = static_cast<std::size_t>(leading) == answer.size()};
}

Result<std::vector<FactsResult>> eval_facts(const Model& model, std::span<const Token> text,
                                            const FactsOptions& options, const EvalProgress& progress) {
  if (options.n_facts < 1 || options.n_samples < 1 || options.prompt_tokens < 1 || options.questions_per_reading < 1) {
    return invalid("facts, samples, prompt tokens and questions of a reading must be at least 1 each");
  }
  const auto stride = static_cast<std::size_t>(options.prompt_tokens);
  if (const std::size_t needed = stride * static_cast<std::size_t>(options.n_samples); text.size() < needed) {
    return invalid(
        "the text has {} tokens, but {} documents of {} need {}: give a longer text, fewer samples or a smaller "
        "context",
        text.size(), options.n_samples, options.prompt_tokens, needed);
  }
  const Result<std::vector<Token>> start = model.tokenize("", true, false);
  if (!start) return start.error();
  const FactsVocabulary vocabulary{
      .tokenize = [&](std::string_view words) { return model.tokenize(words, false, false); },
      .piece = [&](Token token) { return model.piece(token); }};

  std::vector<FactsDocument> documents;
  const auto group = static_cast<std::size_t>(std::min(options.questions_per_reading, options.n_facts));
  std::size_t most_asked = 0;  // tokens
  for (int sample = 0; sample < options.n_samples; ++sample) {
    const std::vector<Fact> facts =
        make_facts(options.n_facts, SplitMix64(options.seed).next() + static_cast<std::uint64_t>(sample));
    Result<FactsDocument> document =
        make_facts_document(*start, text.subspan(stride * static_cast<std::size_t>(sample), stride),
                            options.prompt_tokens, facts, vocabulary);
    if (!document) return document.error();
    std::size_t longest = 0;
    for (const FactQuestion& question : document->questions) longest = std::max(longest, n_tokens(question));
    most_asked = std::max(most_asked, longest * group);
    documents.push_back(*std::move(document));
  }

  std::vector<CacheConfig> caches = {{.method = "full"}};
  caches.insert(caches.end(), options.caches.begin(), options.caches.end());
  Result<LockStep> all = LockStep::create(model, {.caches = caches,
                                                  .n_threads = options.n_threads,
                                                  .n_ctx = options.prompt_tokens + static_cast<int>(most_asked)});
  if (!all) return all.error();
  std::vector<Run> runs(caches.size());
  for (std::size_t r = 0; r < runs.size(); ++r)
    runs[r].result = {.method = caches[r].method, .settings = all->settings(r)};

  const std::size_t n_facts = documents.front().questions.size();
  const std::size_t readings = (n_facts + group - 1) / group;
  EvalWork work(static_cast<double>(documents.size() * readings), progress);
  for (const FactsDocument& document : documents) {
    for (std::size_t reading = 0; reading < readings; ++reading) {
      // Of one reading, questions about different parts of the prompt.
      std::vector<std::size_t> asked;
      for (std::size_t fact = reading; fact < n_facts; fact += readings) asked.push_back(fact);
      std::size_t n_new = 0;
      for (const std::size_t fact : asked) n_new += n_tokens(document.questions[fact]);
      all->reset();
      double read = 0;
      const Result<void> fed =
          all->prefill(document.prompt, static_cast<int>(n_new) - 1, [&](std::int64_t done, std::int64_t total) {
            const double now = kReadingShare * static_cast<double>(done) / static_cast<double>(total);
            return work.done(now - std::exchange(read, now));
          });
      if (!fed) return fed.error();
      for (const std::size_t fact : asked) {
        Result<void> answered = ask(*all, runs, document.questions[fact], 4 * fact / n_facts, fact == asked.back());
        if (!answered) return answered.error();
        if (!work.done((1 - kReadingShare) / static_cast<double>(asked.size()))) return eval_stopped();
      }
      for (std::size_t r = 0; r < runs.size(); ++r) runs[r].result.kv.add(all->report(r));
    }
  }
  std::vector<FactsResult> results;
  for (Run& run : runs) results.push_back(finish(run, runs.front().answers));
  return results;
}

}  // namespace qevict
