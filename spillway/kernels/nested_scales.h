// Scales of nf4's blocks as 8-bit codes: bitsandbytes' double quantisation (QLoRA, arXiv 2305.14314, section 3).
//
// From each scale of a tensor the mean of the tensor's scales is taken. What is left is a code of the signed dynamic
// map (arXiv 2110.02861, section 2.2) times the largest magnitude among kNestedBlocks of them; the code is that of the
// nearest value of x / largest, of two that are as near the lower one. The mean is the fp32 number next to the exact
// one; bitsandbytes adds up in fp32, and its mean may differ in the last bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "spillway/base/on_device.h"
#include "spillway/kernels/encoding.h"

namespace spillway::kernels {

/// The values above zero of the dynamic map's codes from 128 on. Code 127 is zero, code 126 - i is -values[i].
struct DynamicMap {
  float values[128] = {5.50000038e-07F, 3.25000019e-06F, 7.7499999e-06F,  2.12499981e-05F,
                       4.37499984e-05F, 6.62500024e-05F, 8.87499991e-05F, 0.000156250011F,
                       0.000268750038F, 0.000381250022F, 0.000493750034F, 0.000606250076F,
                       0.00071875006F,  0.000831249985F, 0.000943750085F, 0.00128124992F,
                       0.00184375001F,  0.00240624999F,  0.00296874996F,  0.00353124971F,
                       0.00409374991F,  0.00465624966F,  0.00521875033F,  0.00578125007F,
                       0.00634374982F,  0.00690625003F,  0.00746874977F,  0.00803124998F,
                       0.00859375019F,  0.00915624946F,  0.00971874967F,  0.0114062503F,
                       0.0142187504F,   0.0170312505F,   0.0198437516F,   0.0226562507F,
                       0.0254687499F,   0.028281251F,    0.0310937501F,   0.0339062512F,
                       0.0367187522F,   0.0395312496F,   0.0423437469F,   0.0451562516F,
                       0.047968749F,    0.05078125F,     0.053593751F,    0.0564062484F,
                       0.0592187531F,   0.0620312504F,   0.0648437515F,   0.0676562563F,
                       0.0704687461F,   0.0732812509F,   0.0760937482F,   0.078906253F,
                       0.0817187577F,   0.0845312476F,   0.0873437524F,   0.0901562497F,
                       0.0929687545F,   0.0957812592F,   0.0985937491F,   0.107031256F,
                       0.12109375F,     0.135156244F,    0.149218753F,    0.163281247F,
                       0.177343756F,    0.19140625F,     0.205468744F,    0.219531253F,
                       0.233593747F,    0.247656241F,    0.26171875F,     0.275781274F,
                       0.289843738F,    0.303906262F,    0.317968726F,    0.33203125F,
                       0.346093744F,    0.360156238F,    0.374218762F,    0.388281226F,
                       0.40234375F,     0.416406244F,    0.430468738F,    0.444531262F,
                       0.458593726F,    0.47265625F,     0.486718714F,    0.500781238F,
                       0.514843702F,    0.528906226F,    0.54296875F,     0.557031274F,
                       0.571093798F,    0.585156262F,    0.599218726F,    0.61328125F,
                       0.627343774F,    0.641406298F,    0.655468762F,    0.669531226F,
                       0.68359375F,     0.697656274F,    0.711718798F,    0.725781262F,
                       0.739843726F,    0.75390625F,     0.767968774F,    0.782031238F,
                       0.796093762F,    0.810156226F,    0.82421875F,     0.838281274F,
                       0.852343738F,    0.866406262F,    0.880468726F,    0.89453125F,
                       0.908593774F,    0.922656238F,    0.936718762F,    0.950781226F,
                       0.96484375F,     0.978906274F,    0.992968738F,    1.0F};
};

namespace scalar {

/// What a code of the dynamic map stands for.
[[nodiscard]] SPILLWAY_ON_DEVICE inline float dynamic_value(std::uint8_t code) noexcept {
  static constexpr DynamicMap kOwn;  // which a GPU has, too, once and not in each thread
  if (code == 127) return 0;
  return code > 127 ? kOwn.values[code - 128] : -kOwn.values[126 - code];
}

/// The scale of block number `block`.
[[nodiscard]] SPILLWAY_ON_DEVICE inline float nested_scale(const std::uint8_t* codes, const ScaleGroup* groups,
                                                           std::uint64_t block) noexcept {
  const ScaleGroup& group = groups[block / kNestedBlocks];
  return dynamic_value(codes[block]) * group.scale + group.offset;
}

}  // namespace scalar

/// The mean of a tensor's scales, as its values are added.
class ScaleMean {
 public:
  /// The next values of the tensor; all but the last call have whole blocks.
  void add(const float* values, std::size_t n);
  /// Values that were added.
  [[nodiscard]] std::uint64_t values() const noexcept { return values_; }
  /// 0 of no values.
  [[nodiscard]] float mean() const noexcept;

 private:
  double sum_ = 0;
  std::uint64_t values_ = 0, blocks_ = 0;
};

/// Codes of `n` scales, of which the first begins a group, and the groups, the last one of what is left.
void pack_scales(const float* scales, std::size_t n, float mean, std::uint8_t* codes, ScaleGroup* groups);
/// Scales [first, first + n).
void unpack_scales(const std::uint8_t* codes, const ScaleGroup* groups, std::uint64_t first, std::size_t n,
                   float* scales);

}  // namespace spillway::kernels
