/* π from the series 4 · (1 - 1/3 + 1/5 - …), distributed over the ranks and added up by MPI_Reduce.
 *
 *     mpicc arctan_pi.c -o arctan_pi && mpiexec -n 4 ./arctan_pi 1000000
 *
 * Without a number, every rank adds one term.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);

    const long long terms = argc > 1 ? atoll(argv[1]) : size;
    double part = 0.0, pi = 0.0;
    for (long long k = rank; k < terms; k += size)
        part += (k % 2 == 0 ? 4.0 : -4.0) / (2.0 * k + 1.0);
    MPI_Reduce(&part, &pi, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);

    if (rank == 0)
        printf("C, ranks: %d, terms: %lld, pi = %.12f\n", size, terms, pi);
    MPI_Finalize();
    return 0;
}
