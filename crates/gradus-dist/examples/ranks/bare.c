/* How long MPI_Allreduce itself takes: the medians over many calls, for `ranks speed`. Built by `cargo xtask dist`. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    const int bytes[] = {4 << 10, 1 << 20, 64 << 20}, calls[] = {400, 60, 12};
    MPI_Init(&argc, &argv);
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int s = 0; s < 3; s++) {
        int n = bytes[s] / 4, warm = calls[s] / 4;
        float *x = malloc(bytes[s]);
        double *times = malloc(sizeof(double) * calls[s]);
        for (int i = 0; i < n; i++) x[i] = 1e-30f;
        for (int i = 0; i < calls[s] + warm; i++) {
            MPI_Barrier(MPI_COMM_WORLD);
            double begun = MPI_Wtime();
            MPI_Allreduce(MPI_IN_PLACE, x, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            if (i >= warm) times[i - warm] = MPI_Wtime() - begun;
        }
        qsort(times, calls[s], sizeof(double), compare);
        double middle = times[calls[s] / 2], slowest;
        MPI_Reduce(&middle, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        if (rank == 0) printf("%d %.1f us\n", bytes[s], slowest * 1e6);
        free(x);
        free(times);
    }
    MPI_Finalize();
    return 0;
}
