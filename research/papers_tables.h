// Tables of papers.cc that are made elsewhere.
#pragma once

#include "research/papers_report.h"
#include "research/spillway_plan.h"
#include "research/study/shape.h"

namespace spillway::research {

/// One sequence of 1024 tokens of the decoder.
[[nodiscard]] PlannedModel describe_decoder(const study::DecoderShape& shape);

/// CXL-aware allocation: ranges over the released cases; seconds of each case; the bound of the cases that lose;
/// boundary activations on the card; and saved activations there.
void cxl_steps(Report& report);
void cxl_seconds(Report& report);
void cxl_bound(Report& report);
void cxl_rows(Report& report);
void cxl_saved(Report& report);

/// MLP-Offload's node with 175B and 280B.
void scale(Report& report);

/// MemAscend's host with long rows, and with many.
void long_rows(Report& report);

}  // namespace spillway::research
