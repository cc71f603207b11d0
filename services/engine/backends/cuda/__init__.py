"""The fast path on a GPU: Triton kernels and torch's products. It needs Triton.

Tests run the kernels in Triton's interpreter on a CPU and compile them for compute capability 9.0; tests marked `gpu`
need a device. Before it serves, a trial compares it with transformers' layers, see
startup/proof."""
