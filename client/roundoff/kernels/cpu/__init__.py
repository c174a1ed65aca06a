"""The CPU backend: the step in C, on PyTorch's threads, with the statistics in the same pass.

The same bits as the reference. What the C code does not take (amsgrad, a gradient of another dtype, layouts that
differ, stochastic rounding to float16) goes to the reference, tensor by tensor.
"""

from .library import instruction_set as instruction_set, unavailable as unavailable
from .run import rows_and_bins as rows_and_bins, step_cpu as step_cpu, words_in_memory as words_in_memory
from .standing import Standing as Standing, Turns as Turns
