"""What a way of splitting a model needs on a machine: memory, bytes sent and seconds per step.

quantity    a number with its unit, its formula and its source, down to what was measured
models      what is trained: the layers of a Transformer
plan        a way to split it: data, ZeRO, pipeline, tensor, sequence, and combinations
memory      the most bytes that a rank holds within a step
machine     what the ranks of a machine need for an operation and a message
seconds     bytes sent per step, what hides behind computing, and how long a step takes
"""
