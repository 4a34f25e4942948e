// The facts of this deployment that the kernels are compiled for. Written by the generator.
#pragma once

constexpr int NUM_HEADS = 14;
constexpr int NUM_KV_HEADS = 2;
constexpr int HEAD_DIM = 64;
constexpr int BLOCK_SIZE = 16;
