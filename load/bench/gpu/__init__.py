"""The parts of `load.bench.gpu`: the engine on a GPU, with random weights of real configurations."""
