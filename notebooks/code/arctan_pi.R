# π from the series 4 · (1 - 1/3 + 1/5 - …), distributed over the ranks and added up by mpi.reduce.
#
#     mpirun -n 4 Rscript arctan_pi.R 1000000
#
# Without a number, every rank adds one term. mpirun must be the one that Rmpi was built with.
suppressMessages(library(Rmpi))

world <- 0
rank <- mpi.comm.rank(world)
size <- mpi.comm.size(world)
given <- commandArgs(trailingOnly = TRUE)
terms <- if (length(given) > 0) as.numeric(given[1]) else size

k <- if (rank < terms) seq(rank, terms - 1, by = size) else numeric(0)
part <- sum(ifelse(k %% 2 == 0, 4, -4) / (2 * k + 1))
pi.sum <- mpi.reduce(part, type = 2, op = "sum", dest = 0, comm = world) # type 2: double

if (rank == 0) cat(sprintf("R, ranks: %d, terms: %.0f, pi = %.12f\n", size, terms, pi.sum))
invisible(mpi.finalize())
