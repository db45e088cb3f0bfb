// A program of someone else's: continues a text with the installed library.
#include <qevict/qevict.h>

#include <iostream>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const qevict::Result<qevict::Model> model = qevict::Model::load(argv[1]);
  if (!model) return std::cerr << model.error().message << "\n", 1;
  qevict::Result<qevict::Session> session = qevict::Session::create(*model, {.n_threads = 2, .n_ctx = 64});
  if (!session) return std::cerr << session.error().message << "\n", 1;
  const auto prompt = model->tokenize("The capital of France is", true, false);
  if (!prompt) return std::cerr << prompt.error().message << "\n", 1;
  const auto answer = qevict::generate(*model, *session, *prompt, {.max_new = 8, .sampling = {.temperature = 0}});
  if (!answer) return std::cerr << answer.error().message << "\n", 1;
  std::cout << "The capital of France is" << answer->text << "\n";
  return answer->tokens.size() == 8 ? 0 : 1;
}
