// A layout cuts the tensors of a model into blocks, which compute together, and chunks, which move together.
//
// A layout follows from the model and the configuration alone, never from a budget or a placement, so that the same
// configuration reduces and rounds in the same order wherever its bytes lie (design: rule of determinism).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "spillway/base/bytes.h"
#include "spillway/optim/descriptor.h"
#include "spillway/optim/reduction.h"
#include "spillway/state/form.h"

namespace spillway::state {

/// How a tensor takes part in learning. In a layer those of one way lie together, in this order: what is trainable
/// first.
enum class Training : std::uint8_t {
  full,     ///< has a gradient, and a state of its own
  reduced,  ///< a matrix that has both in a smaller shape alone (optim/reduction.h)
  frozen,   ///< has neither: its weight is read and never written
};
inline constexpr std::array kTrainings{Training::full, Training::reduced, Training::frozen};

[[nodiscard]] constexpr bool is_trainable(Training training) noexcept {
  return training != Training::frozen;
}

struct TensorSpec {
  std::string name;                 ///< as in the checkpoint, e.g. "model.layers.0.mlp.up_proj.weight"
  std::vector<std::int64_t> shape;  ///< all dimensions > 0
  bool decay = false;               ///< weight decay applies
  Training training = Training::full;
  std::uint64_t rank = 0, nonzeros = 0;  ///< of optim::Reduced, for Training::reduced; else 0
  Form form = Form::as_run;
  bool table = false;  ///< of two dimensions, and no matrix of a product: an embedding beside the first, a score
  /// For Training::reduced; those of a layout are the same.
  const optim::Reduction* reduction = optim::Reduced{}.by;
  /// Equal parts of the values of a tensor that is packed or of the run's type, each of whole granules, that passes
  /// convert or copy a few at a time when layers ask for them. 0: passes convert all of it before they begin.
  std::uint64_t pieces = 0;
  bool apart = false;  ///< with `pieces`, of whole granules of a chunk: each is an object of its own (Chunk::object)
  /// Share of the pieces that are `apart` that an average step asks for; below 1 passes ask for those they need.
  double asked = 1;
  std::vector<double> asked_by_piece = {};  ///< share of the steps that ask for each; empty: `asked`

  /// Share of the steps that ask for a piece.
  [[nodiscard]] double share_of(std::uint64_t piece) const {
    return asked_by_piece.empty() ? asked : asked_by_piece.at(piece);
  }
  /// True if passes ask for pieces that they need.
  [[nodiscard]] bool is_asked() const noexcept { return asked < 1 || !asked_by_piece.empty(); }
};

/// How a block takes part in a step; what is asked of a role is a column of its row below.
enum class BlockRole : std::uint8_t {
  embedding,  ///< one table [rows, columns], cut into slices of whole rows; read by gathering rows
  layer,      ///< any tensors, contiguous in memory during its passes, forward and backward
  head,       ///< one matrix [rows, columns], cut like an embedding; it has two passes, slice by slice
};

struct RoleTraits {
  const char* name;  ///< in descriptions
  bool is_table;     ///< of one tensor [rows, columns], whose slices have passes of their own; else a layer
  bool is_gathered;  ///< its passes read some rows, which alone have gradients; else all of it is multiplied by
};

inline constexpr std::array<RoleTraits, 3> kRoles = {{
    {"embedding", true, true},
    {"layer", false, false},
    {"head", true, false},
}};

[[nodiscard]] constexpr const RoleTraits& traits(BlockRole role) noexcept {
  return kRoles[static_cast<std::size_t>(role)];
}

struct BlockSpec {
  std::string name;
  BlockRole role = BlockRole::layer;
  std::vector<TensorSpec> tensors;  ///< of a table exactly one, of two dimensions
};

/// Where one tensor lies in its block.
struct Tensor {
  TensorSpec spec;
  std::size_t block = 0;        ///< index into Layout::blocks()
  std::uint64_t first = 0;      ///< where it begins, in elements of the compute type from the start of the block
  std::uint64_t elements = 0;   ///< product of the shape
  optim::Reduced reduced = {};  ///< Training::reduced alone
  bool whole = false;           ///< a matrix that is a chunk of its own, since its optimizer needs all of it

  /// Values of a piece; 0: it has no pieces.
  [[nodiscard]] std::uint64_t piece() const noexcept { return spec.pieces == 0 ? 0 : elements / spec.pieces; }
  /// Elements of its gradient and its moments, and their shape; of what is frozen they mean nothing.
  [[nodiscard]] std::uint64_t gradient_elements() const noexcept {
    return reduced.any() ? reduced.elements() : elements;
  }
  [[nodiscard]] std::vector<std::int64_t> gradient_shape() const;
};

/// What moves together: a contiguous range of a block, all of whose tensors learn in the same way. A matrix that an
/// optimizer of matrix scope updates, or whose gradient is reduced, is a chunk of its own: an update needs all of it.
/// Tensors of another form than the run's have chunks of their own, too, whose values take the place of elements
/// (Packing), so that whatever moves or places bytes need not know of them.
struct Chunk {
  std::size_t id = 0;          ///< index into Layout::chunks()
  std::size_t block = 0;       ///< index into Layout::blocks()
  std::uint64_t first = 0;     ///< first element, counted from the start of the block
  std::uint64_t elements = 0;  ///< elements moved: `used` padded to a multiple of kChunkGranule
  std::uint64_t used = 0;      ///< elements from `first` on that belong to the block (gaps between tensors included)
  std::uint64_t unquantised =
      0;  ///< room for the elements of unquantised tensors, each span padded to kUnquantisedGranule
  Training training = Training::full;
  std::uint64_t gradient_elements =
      0;  ///< values of its gradient and its moments: values(); of a reduced one its own, padded; or 0
  optim::Reduced reduced = {};  ///< Training::reduced alone
  Form form = Form::as_run;     ///< of all its tensors
  Packing packing = {};         ///< of that form
  bool whole = false;           ///< it is one matrix [rows, columns], which an optimizer of matrix scope updates
  std::uint64_t rows = 0, columns = 0;  ///< of such a matrix; else 0
  std::uint64_t index = 0;  ///< number of its first value in the block, wherever chunks end: what random numbers go by
  std::size_t object = 0;   ///< number, in its block, of what lies together in memory and is placed as one
  double asked = 1;         ///< share of the steps that ask for it (TensorSpec)
  std::size_t shard = 0;    ///< the shard of the state that it belongs to (state/ownership.h)

  /// What it holds; Span counts these.
  [[nodiscard]] constexpr std::uint64_t values() const noexcept { return packing.values_in(elements); }
};

/// Tensors of fewer elements are unquantised: some formats keep their moments apart.
inline constexpr std::uint64_t kUnquantisedBelow = 4096;
inline constexpr std::uint64_t kUnquantisedGranule = 16;
inline constexpr std::uint64_t kQuantised = ~std::uint64_t{0};

/// The part of a tensor that lies in a chunk.
struct Span {
  std::size_t tensor = 0;          ///< index into Layout::tensors()
  std::uint64_t tensor_first = 0;  ///< first element, counted from the start of the tensor
  std::uint64_t chunk_first = 0;   ///< first value, counted from the start of the chunk
  std::uint64_t elements = 0;      ///< > 0
  std::uint64_t unquantised =
      kQuantised;  ///< of an unquantised tensor: first element, counted over such spans of the chunk

  [[nodiscard]] constexpr bool is_unquantised() const noexcept { return unquantised != kQuantised; }
};

struct Block {
  std::string name;
  BlockRole role = BlockRole::layer;
  std::size_t first_tensor = 0, tensors = 0;  ///< range in Layout::tensors()
  std::size_t first_chunk = 0, chunks = 0;    ///< range in Layout::chunks()
  std::size_t pass_chunks = 0;                ///< chunks that a pass takes: of a layer all, of a table one, a slice
  std::uint64_t elements = 0;                 ///< sum of its chunks' `elements`
  std::size_t trainable_chunks = 0;           ///< the first so many of its chunks are trainable
  std::uint64_t trainable_elements = 0;       ///< elements of these; of reduced matrices those of the weight
  std::uint64_t rows = 0, columns = 0;        ///< shape of a table; else 0
  std::uint64_t slice_rows = 0;               ///< of a table: rows of every slice but the last
  bool packed = false;                        ///< it has chunks whose form is_packed()
};

/// Elements every chunk is a multiple of: 2048 bf16 are 4096 bytes, the alignment of direct I/O.
inline constexpr std::uint64_t kChunkGranule = 2048;
/// Values of a packed form that a granule holds, with weights of the type: pieces that are `apart` are multiples of it.
[[nodiscard]] constexpr std::uint64_t granule_values(Form form, ComputeType type) noexcept {
  const auto packing = packing_of(form, type);
  return packing.values_in(packing.granule(kChunkGranule));
}
/// Tensors in a layer block start at multiples of at least so many elements (a cache line of bf16 and of fp32).
inline constexpr std::uint64_t kTensorAlignment = 64;
inline constexpr std::uint64_t kDefaultChunkElements = 4 * 1024 * 1024;

class Layout {
 public:
  /// `chunk_elements`: upper bound of a chunk of a layer, target of a slice; > 0, rounded up to kChunkGranule, and for
  /// chunks of packed weights to the least granule of whole blocks.
  /// `alignment`: elements, a multiple of kTensorAlignment that divides kChunkGranule; tensors of a layer start at
  /// multiples of it, and with more than kTensorAlignment slices of a table, too, counted from the start of the table.
  /// What is trainable in another way than the tensors before it, or has another form, begins a chunk. `scope`: of the
  /// optimizer; of matrix scope each matrix of a layer that is trained in full and is stored as the run's type is a
  /// whole chunk. `type`: of the run's weights. `shards`, > 0: what of a block is trained and stored alike is cut into
  /// so many runs of whole chunks, the first for shard 0 and so on, as even as chunks allow (of a small one there are
  /// fewer), and a table into so many runs of slices; a matrix that is a chunk of its own goes whole to the shard with
  /// the fewest elements so far. Throws Error(bad_input) naming the tensor for an empty block, an empty or repeated
  /// name, a dimension <= 0, a table that is not of two dimensions, is reduced or has a form of its own, a packed form
  /// of what is trainable or lies outside layers, and what is reduced and is no matrix, has a form of its own but
  /// bf16_master, or has a shape that its reduction refuses.
  explicit Layout(const std::vector<BlockSpec>& blocks, std::uint64_t chunk_elements = kDefaultChunkElements,
                  std::uint64_t alignment = kTensorAlignment, ComputeType type = ComputeType::bf16,
                  optim::Scope scope = optim::Scope::element, std::size_t shards = 1);

  [[nodiscard]] const std::vector<Block>& blocks() const noexcept { return blocks_; }
  /// Those that are no tables, as indices into blocks().
  [[nodiscard]] const std::vector<std::size_t>& layers() const noexcept { return layers_; }
  /// The block whose rows are gathered; null: there is none.
  [[nodiscard]] const Block* embedding() const noexcept;
  [[nodiscard]] const std::vector<Tensor>& tensors() const noexcept { return tensors_; }
  [[nodiscard]] const std::vector<Chunk>& chunks() const noexcept { return chunks_; }
  /// Parts of tensors in chunk `id`, by rising chunk_first.
  [[nodiscard]] const std::vector<Span>& spans(std::size_t id) const { return spans_.at(id); }
  /// Elements of all tensors, padding not counted.
  [[nodiscard]] std::uint64_t parameters() const noexcept { return parameters_; }
  /// The elements of tensors that are trainable.
  [[nodiscard]] std::uint64_t trainable_parameters() const noexcept { return trainable_parameters_; }
  [[nodiscard]] std::uint64_t largest_chunk() const noexcept { return largest_chunk_; }
  /// How matrices are reduced; null: none is.
  [[nodiscard]] const optim::Reduction* reduction() const noexcept { return reduction_; }
  /// Shards that the chunks are divided among; some may have none.
  [[nodiscard]] std::size_t shards() const noexcept { return shard_elements_.size(); }

 private:
  void add_layer(const BlockSpec& spec);
  void add_table(const BlockSpec& spec);
  Block& add_block(const BlockSpec& spec);
  std::uint64_t add_range(std::uint64_t begin, Training training, Form form);
  void add_objects(const Tensor& tensor, const Packing& packing);
  std::uint64_t add_matrices(std::uint64_t begin, Training training);
  [[nodiscard]] bool is_whole(const TensorSpec& spec, BlockRole role) const;
  void add_chunk(std::uint64_t first, std::uint64_t used, Training training, Form form = Form::as_run,
                 bool whole = false);
  void add_run(std::uint64_t begin, std::uint64_t first, std::uint64_t end, Training training, Form form,
               std::size_t shard);
  void assign(std::size_t shard);
  [[nodiscard]] std::size_t smallest_shard() const;

  std::uint64_t chunk_elements_, alignment_;
  ComputeType type_;
  optim::Scope scope_;
  std::uint64_t parameters_ = 0, trainable_parameters_ = 0;
  std::uint64_t largest_chunk_ = 0;
  const optim::Reduction* reduction_ = nullptr;
  std::vector<Block> blocks_;
  std::vector<std::size_t> layers_;
  std::vector<Tensor> tensors_;
  std::vector<Chunk> chunks_;
  std::vector<std::vector<Span>> spans_;
  std::vector<std::uint64_t> objects_;         ///< of the last block: where those behind the first begin
  std::vector<std::uint64_t> shard_elements_;  ///< by shard: those of its chunks so far
};

}  // namespace spillway::state
