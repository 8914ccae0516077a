#include "spillway/base/error.h"
#include "spillway/execute/volumes.h"

namespace spillway::execute {

std::string model_words(const plan::Description& description, const state::Layout& layout) {
  std::string words =
      text(state::name_of(description.weight_dtype), ' ', description.tied_head, ' ', description.chunk_elements, '\n');
  if (description.rule() != state::UpdateRule{.type = description.weight_dtype}) {  // which older volumes do not name
    words +=
        text(description.optimizer->name, ' ', state::name_of(description.state_format), ' ', description.seed, '\n');
  }
  for (const auto& tensor : layout.tensors()) {
    words += text(tensor.block, ' ', tensor.spec.name);
    for (const auto dimension : tensor.spec.shape) words += text(' ', dimension);
    if (!is_trainable(tensor.spec.training)) words += " frozen";
    if (tensor.spec.form != state::Form::as_run) words += text(' ', word_of(tensor.spec.form));
    if (tensor.whole) words += " whole";
    if (tensor.reduced.any()) {
      words += text(' ', tensor.reduced.by->word, ' ', tensor.reduced.rank, ' ', tensor.reduced.nonzeros);
    }
    words += '\n';
  }
  return words;
}

}  // namespace spillway::execute
