"""Systems in processes of their own, which get traces as lines of JSON; see `load.bench.beside_llama_cpp`."""
