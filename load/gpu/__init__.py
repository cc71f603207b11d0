"""The parts of `load.gpu_bench`: the engine on a GPU, with random weights of real configurations."""
