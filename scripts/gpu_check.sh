#!/bin/sh
# What needs a CUDA GPU: tests of the Triton kernels and of copies off the device, then how long a step takes.
# Usage: gpu_check.sh [PYTHON]. What the benchmark finds goes to gpu_check.json.
set -eu
cd "$(dirname "$0")/.."
python=${1:-.venv/bin/python}
unset TRITON_INTERPRET

"$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || {
    echo "roundoff: $python has no PyTorch that finds a CUDA GPU here" >&2
    exit 1
}
"$python" -m pytest tests/kernels/test_triton.py tests/kernels/test_triton_compiles.py tests/client/test_transfer.py
"$python" benchmarks/optimizer_step.py --device cuda --json gpu_check.json
