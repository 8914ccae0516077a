// Arithmetic on every device gives the bits of the host's, element by element: also what the kernels of a GPU do, which
// the fake driver runs on the host thread by thread. A real GPU takes part where there is one.
#include "spillway/device/work.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "spillway/kernels/packed.h"
#include "tests/device/device_work.h"

namespace spillway::device {
namespace {

constexpr std::uint64_t kSizes[] = {0, 1, 31, 32, 33, 255, 65535, 65536, 65537, 200003};

TEST_P(DeviceWork, ConvertsFromEveryEncodingToEveryType) {
  using kernels::Encoding;
  constexpr Encoding kEncodings[] = {Encoding::bf16, Encoding::fp16, Encoding::fp32};
  for (std::size_t from = 0; from < std::size(kEncodings); ++from) {
    for (const auto to : kTypes) {
      for (const auto n : kSizes) {
        Image image;
        const auto values = image.put(elements(kTypes[from], n));
        const auto out = image.room<float>(n);
        expect_same(
            image,
            [&](std::byte* base) {
              return Convert{kEncodings[from], to, base + values, base + out, n};
            },
            text("conversion of ", n));
      }
    }
  }
}

TEST_P(DeviceWork, ConvertsPackedWeightsToEveryType) {
  using kernels::Encoding;
  for (const auto from : {Encoding::nf4, Encoding::int8, Encoding::nf4_nested}) {
    for (const auto to : kTypes) {
      for (const std::uint64_t about : {0, 64, 128, 65536, 65600, 200000}) {
        const auto n = round_up(about, kernels::group_values(from));
        std::vector<std::byte> packed(kernels::encoded_bytes(from, n));
        kernels::pack(from, floats(n).data(), packed.data(), n, 0, n, 0.5F);
        Image image;
        const auto values = image.put(packed);
        const auto out = image.room<float>(n);
        expect_same(
            image,
            [&](std::byte* base) {
              return Convert{from, to, base + values, base + out, n};
            },
            text("packed conversion of ", n));
        expect_same(
            image,
            [&](std::byte* base) {
              const auto first = n / 3 / kernels::kPackedBlock * kernels::kPackedBlock;
              return Convert{from, to, base + values, base + out, (n - first) / 2, first, n};
            },
            text("packed conversion of some of ", n));
      }
    }
  }
}

TEST_P(DeviceWork, SumsOfMicroBatches) {
  for (const auto type : kTypes) {
    for (const auto n : kSizes) {
      for (const bool first : {true, false}) {
        Image image;
        const auto values = image.put(elements(type, n));
        const auto sum = image.put(floats(n));
        expect_same(
            image,
            [&](std::byte* base) {
              return Sum{type, base + values, at<float>(base, sum), n, first};
            },
            text("sum of ", n));
      }
    }
  }
}

TEST_P(DeviceWork, RoundedWithTheirSquares) {
  for (const auto type : kTypes) {
    for (const auto n : kSizes) {
      Image image;
      const auto sums = image.put(floats(n));
      const auto out = image.room<std::byte>(n * traits(type).bytes);
      const auto squares = image.room<double>(square_tiles(n));
      expect_same(
          image,
          [&](std::byte* base) {
            return Round{type, at<float>(base, sums), nullptr, base + out, n, at<double>(base, squares)};
          },
          text("round ", n));
    }
  }
}

TEST_P(DeviceWork, CopiedWithTheirSquaresAlsoInPlace) {
  for (const auto type : kTypes) {
    for (const auto n : kSizes) {
      for (const bool in_place : {true, false}) {
        Image image;
        const auto values = image.put(elements(type, n));
        const auto out = in_place ? values : image.room<std::byte>(n * traits(type).bytes);
        const auto squares = image.room<double>(square_tiles(n));
        expect_same(
            image,
            [&](std::byte* base) {
              return Round{type, nullptr, base + values, base + out, n, at<double>(base, squares)};
            },
            text("copy ", n));
      }
    }
  }
}

TEST_P(DeviceWork, AddressesNeedNoMoreThanTheAlignmentOfAnElement) {
  for (const auto type : kTypes) {
    const auto bytes = traits(type).bytes;
    for (const std::uint64_t skipped : {1, 2, 7}) {
      const std::uint64_t n = 70001;
      Image image;
      const auto values = image.put(elements(type, n + skipped));
      const auto sums = image.put(floats(n + skipped));
      const auto out = image.room<std::byte>((n + skipped) * bytes);
      const auto squares = image.room<double>(square_tiles(n));
      expect_same(
          image,
          [&](std::byte* base) {
            return Sum{type, base + values + skipped * bytes, at<float>(base, sums) + skipped, n, false};
          },
          text("sum behind ", skipped));
      expect_same(
          image,
          [&](std::byte* base) {
            return Round{type, at<float>(base, sums) + skipped, nullptr, base + out + skipped * bytes,
                         n,    at<double>(base, squares)};
          },
          text("round behind ", skipped));
      expect_same(
          image,
          [&](std::byte* base) {
            return Round{type, nullptr, base + values + skipped * bytes, base + out, n, at<double>(base, squares)};
          },
          text("copy from behind ", skipped));
    }
  }
}

TEST_P(DeviceWork, WhatIsNotFiniteIsSeen) {
  for (const auto type : kTypes) {
    for (const auto odd : {INFINITY, -INFINITY, std::nanf("")}) {
      Image image;
      std::vector<float> values(70000, 0.5F);
      values[66666] = odd;
      const auto sums = image.put(values);
      const auto out = image.room<std::byte>(values.size() * traits(type).bytes);
      const auto squares = image.room<double>(2);
      expect_same(
          image,
          [&](std::byte* base) {
            return Round{type, at<float>(base, sums), nullptr, base + out, values.size(), at<double>(base, squares)};
          },
          "not finite");
      double found[2] = {};
      std::memcpy(found, host_.span().data() + squares, sizeof found);
      EXPECT_TRUE(kernels::Norm{found[0]}.finite());
      EXPECT_FALSE(kernels::Norm{found[1]}.finite());
    }
  }
}

TEST_P(DeviceWork, SquaresOfParts) {
  for (const auto type : kTypes) {
    Image image;
    const std::vector<Part> parts{{0, 7}, {7, 65536}, {65543, 0}, {70000, 32}, {70100, 33}, {99000, 1000}};
    const auto values = image.put(elements(type, 100000));
    const auto where = image.put(parts);
    const auto squares = image.room<double>(parts.size());
    expect_same(
        image,
        [&](std::byte* base) {
          return Squares{type, base + values, at<Part>(base, where), parts.size(), at<double>(base, squares)};
        },
        "parts");
  }
}

TEST_P(DeviceWork, RowsOfATable) {
  for (const auto type : kTypes) {
    Image image;
    const std::vector<std::int64_t> rows{100, 103, 104, 119};
    const std::uint64_t columns = 771;
    const auto values = image.put(elements(type, 20 * columns));
    const auto ids = image.put(rows);
    const auto out = image.room<float>(rows.size() * columns);
    expect_same(
        image,
        [&](std::byte* base) {
          return Gather{type,        base + values, at<std::int64_t>(base, ids), 100,
                        rows.size(), columns,       at<float>(base, out)};
        },
        "rows");
  }
}

TEST_P(DeviceWork, SelectsRowsByTheirIndex) {
  for (const auto type : kTypes) {
    for (const std::uint64_t columns : {1, 7, 8, 771, 1024}) {
      Image image;
      const std::vector<std::uint32_t> index{3, 0, 0, 19, 7, 3, 3, 18};
      const auto values = image.put(elements(type, 20 * columns));
      const auto places = image.put(index);
      const auto out = image.room<std::byte>(index.size() * columns * traits(type).bytes);
      expect_same(
          image,
          [&](std::byte* base) {
            return IndexSelect{type, base + values, at<std::uint32_t>(base, places), index.size(), columns, base + out};
          },
          text("selection of rows of ", columns));
    }
  }
}

TEST_P(DeviceWork, TheLossInSlices) {
  for (const auto type : kTypes) {
    for (const std::uint64_t rows : {1U, 63U, 64U, 65U, 1000U, 2731U}) {
      Image image;
      const std::uint64_t tokens = 11;
      std::vector<std::int64_t> labels(tokens);
      for (auto& label : labels)
        label = 500 + static_cast<std::int64_t>(next() % (2 * rows)) - static_cast<int>(rows) / 2;
      const auto stride = rows + rows % 5;
      const auto logits = image.put(elements(type, tokens * stride));
      const auto where = image.put(labels);
      std::vector<float> maxima(tokens, -INFINITY);
      maxima[3] = 2.5F;
      const auto maximum = image.put(maxima);
      const auto sum = image.put(std::vector<float>(tokens, 0.0F));
      const auto gold = image.put(std::vector<float>(tokens, 0.0F));
      const auto slice = [&](std::byte* base) {
        return Logits{type, base + logits, tokens, rows, stride, 500, at<std::int64_t>(base, where)};
      };
      expect_same(
          image,
          [&](std::byte* base) {
            return LossStats{slice(base), at<float>(base, maximum), at<float>(base, sum), at<float>(base, gold)};
          },
          text("stats of ", rows));
      expect_same(
          image,
          [&](std::byte* base) {
            return LossGradient{slice(base), at<float>(base, maximum), at<float>(base, sum), 0.37F};
          },
          text("gradient of ", rows));
    }
  }
}

/// Rows, columns and nonzeros of projectors: groups of one row, uneven ones, all columns in each row.
constexpr std::array<std::array<std::uint64_t, 3>, 4> kProjectors{{{8, 8, 1}, {37, 12, 4}, {130, 64, 16}, {9, 4, 4}}};

/// A projector in an image.
struct LaidProjector {
  LaidProjector(Image& image, const kernels::Projector& shape, const std::vector<float>& floats, bool scattered)
      : view(shape), values(image.put(floats)) {
    if (!scattered) return;
    std::vector<std::uint32_t> columns(floats.size());
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const auto row = i % shape.stride(), s = i / shape.stride();
      columns[i] = static_cast<std::uint32_t>((row * row + s * (shape.columns / shape.nonzeros)) % shape.columns);
    }
    view.places = columns.data();
    std::vector<std::uint32_t> numbers(column_index_size(view));
    number_columns(view, numbers.data());
    places = image.put(columns);
    by_column = image.put(numbers);
  }
  [[nodiscard]] kernels::Projector from(std::byte* base) const {
    auto out = view;
    out.values = at<float>(base, values);
    if (!view.is_scattered()) return out;
    out.places = at<std::uint32_t>(base, places);
    out.by_column = at<std::uint32_t>(base, by_column);
    return out;
  }

  kernels::Projector view;
  std::size_t values = 0, places = 0, by_column = 0;
};

TEST_P(DeviceWork, TokensThroughAProjector) {
  for (const auto type : kTypes) {
    for (const auto& [rows, columns, nonzeros] : kProjectors) {
      for (const std::uint64_t tokens : {0, 1, 19, 300}) {
        for (const bool scattered : {false, true}) {
          Image image;
          const kernels::Projector shape{nullptr, rows, columns, nonzeros};
          const auto stride = rows + 3, out_stride = tokens + 1;
          const LaidProjector projector(image, shape, floats(nonzeros * shape.stride()), scattered);
          const auto in = image.put(elements(type, tokens * stride));
          const auto out = image.put(elements(type, columns * out_stride));
          expect_same(
              image,
              [&](std::byte* base) {
                return Compress{type, projector.from(base), base + in, stride, tokens, base + out, out_stride};
              },
              text(tokens, " tokens of ", rows, " through ", columns, scattered ? " scattered" : ""));
        }
      }
    }
  }
}

TEST_P(DeviceWork, AChangeOutOfItsSubspace) {
  for (const auto& [rows, rank, nonzeros] : kProjectors) {
    for (const auto& [columns, first, rest] : {std::array<std::uint64_t, 3>{rows + 5, 0, 0}, {2 * rows, rows + 1, 3}}) {
      Image image;
      const kernels::Projector p{nullptr, rows, rank, nonzeros}, q{nullptr, columns, rank, nonzeros};
      const auto n = rows * columns - first - rest;
      std::vector<std::uint16_t> weight(n), remainder(n);
      for (std::uint64_t i = 0; i < n; ++i) {
        kernels::scalar::split_bits(std::bit_cast<std::uint32_t>(value()), weight[i], remainder[i]);
      }
      const auto weights = image.put(weight), remainders = image.put(remainder);
      const auto kind = [&](bool scattered) {
        return std::pair(LaidProjector(image, p, floats(nonzeros * p.stride()), scattered),
                         LaidProjector(image, q, floats(nonzeros * q.stride()), scattered));
      };
      const std::array kinds{kind(false), kind(true)};
      const auto delta = image.put(floats(rank * rank));
      for (const int round : {0, 1, 2, 3}) {
        const bool rounds = round % 2 == 1;
        const auto& [left, right] = kinds[static_cast<std::size_t>(round) / 2];
        expect_same(
            image,
            [&, first = first, &left = left, &right = right](std::byte* base) {
              const kernels::Expansion expansion{left.from(base), right.from(base), at<float>(base, delta), 7, 3};
              auto* const remainder_at = rounds ? nullptr : at<std::uint16_t>(base, remainders);
              return Apply{expansion, at<std::uint16_t>(base, weights), remainder_at, first, n, 0.99F, 1000 + rank};
            },
            text(rows, " x ", columns, " from ", first, " round ", round));
      }
    }
  }
}

TEST_P(DeviceWork, ASampleOfTwoRunningMeans) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  for (const double samples : {0.0, 1.0, 7.0}) {
    for (const auto& [count, last] : {std::pair<std::uint64_t, double>{0, 1}, {1, 0.5}, {5, 3e300}, {3, kNever}}) {
      Image image;
      std::vector<double> squares(10, 0.1);
      squares[4 + count] = last;
      const auto first = image.put(squares), out = image.put(std::vector<double>(16, 3.5));
      expect_same(
          image,
          [&, count = count](std::byte* base) {
            auto* const from = at<double>(base, first);
            auto* const to = at<double>(base, out);
            return Sample{.record = {3, 1.5, 2.25, samples, 4},
                          .first = from,
                          .second = from + 5,
                          .first_count = 4,
                          .second_count = count,
                          .scale = 4,
                          .out = to,
                          .copy = to + 8};
          },
          text("sample ", samples, " of ", count));
    }
  }
}

TEST_P(DeviceWork, WorkKeepsTheOrderOfItsStream) {
  Image image;
  constexpr std::uint64_t kElements = 100000;
  const auto ones = std::vector<float>(kElements, 1.0F);
  const auto values = image.put(ones);
  const auto sum = image.put(std::vector<float>(kElements, 0.0F));
  std::ranges::copy(image.bytes(), host_.span().data());
  const auto other = device_->make_stream();
  const auto sent = device_->make_event(), summed = device_->make_event();
  device_->copy(other, Direction::to_device, memory_.data(), host_.span().data(), image.bytes().size());
  device_->record(sent, other);
  device_->wait(stream_, sent);
  for (int i = 0; i < 7; ++i) {
    device_->run(stream_,
                 Sum{Element::fp32, memory_.data() + values, at<float>(memory_.data(), sum), kElements, false});
  }
  device_->record(summed, stream_);
  device_->wait(other, summed);
  device_->copy(other, Direction::from_device, host_.span().data(), memory_.data() + sum, kElements * sizeof(float));
  device_->record(sent, other);
  device_->synchronise(sent);
  for (std::uint64_t i = 0; i < kElements; ++i) ASSERT_EQ(at<float>(host_.span().data(), 0)[i], 7.0F) << i;
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceWork, ::testing::ValuesIn(device_kinds()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace spillway::device
