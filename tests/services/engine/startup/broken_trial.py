"""A trial whose process fails in the way that the first argument names, as kernels might make it fail."""

import os
import signal
import sys

END = {"segv": signal.SIGSEGV, "ill": signal.SIGILL, "killed": signal.SIGKILL}


def main(how: str) -> None:
    if how in END:
        os.kill(os.getpid(), END[how])
    elif how == "silent":
        sys.exit("no word of it")
    elif how == "raises":
        print('{"error": "ValueError: no word"}')
    elif how == "wrong":  # every token reads the embedding of another
        import services.engine.backends.cpu.decoder as cpu  # here, as importing torch takes a second

        forward = cpu.CpuDecoder.forward

        def wrong(self, batch):
            batch.input_ids[:] = (batch.input_ids + 1) % 100
            return forward(self, batch)

        cpu.CpuDecoder.forward = wrong
        import runpy

        runpy.run_module("services.engine.startup.proof", run_name="__main__")


main(os.path.basename(sys.argv[1]).partition("-")[0])
