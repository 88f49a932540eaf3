"""Distributed deep learning on mpi4py and torch: each mechanism in one file, tested and timed.

    pi          three ways to π, alone and with a communicator
    comm        collectives by hand, autograd regions, halos, process grids, counted messages
    parallel    one strategy per file: data_parallel, pipeline, tensor_parallel, hybrid, zero, checkpoint …
    training    one process: the loop, models, metrics
    data        MNIST, CIFAR-10 and what stands in for them; CNN/DailyMail
    theory      what the papers predict: cost models, memory, schedules, partitions; pure Python
    fast        optimised forms of what is plain above, with the same signatures
    measure     how long something takes on several ranks, as `rows` that draw themselves
    effects     slow messages, a slow rank, too little memory: delayed on purpose, to see who waits

It needs numpy, torch and mpi4py. Inside, imports point down only: `fast` → `parallel` → `comm` → `pi`,
`theory`, `training` → `data`. Importing does nothing. README.md has a program for each family.
"""
