// Each kernel has one mistake, or is its twin without it. The tests find the lines by the words in their comments.
extern "C" {

__global__ void reverse(const int *x, int *y, int barrier) {
    __shared__ int s[256];
    s[threadIdx.x] = x[threadIdx.x];  // line: reverse writes
    if (barrier) __syncthreads();
    y[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];  // line: reverse reads
}

__global__ void rotate(int *x, int sync) {
    __shared__ int s[32];
    s[threadIdx.x] = x[threadIdx.x];
    if (sync) __syncwarp();
    x[threadIdx.x] = s[(threadIdx.x + 1) & 31];  // line: rotate reads
}

__global__ void add(const float *x, const float *y, float *z, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n) z[i] = x[i] + y[i];  // line: one too many
}

__global__ void rows(const float *x, float *y, int stride) {
    y[blockIdx.x * stride + threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];  // line: rows overlap
}

__global__ void partial(const float *x, float *y) {
    __shared__ float s[64];
    if (threadIdx.x < 32) s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x];  // line: half is unset
}

__global__ void past(const float *x, float *y, int at) {
    __shared__ float a[32];
    __shared__ float b[32];
    a[threadIdx.x] = x[threadIdx.x];
    b[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = a[at + threadIdx.x] + b[threadIdx.x];  // line: past the array
}

__global__ void half_barrier(int *x, int limit) {
    if (threadIdx.x < limit) {
        x[threadIdx.x] += 1;
        __syncthreads();  // line: not all come
        x[threadIdx.x] += 1;
    }
}

__global__ void two_barriers(int *x, int limit) {
    if (threadIdx.x < limit) {
        x[threadIdx.x] += 1;
        __syncthreads();  // line: first of two
    } else {
        x[threadIdx.x] += 2;
        __syncthreads();  // line: second of two
    }
}

__global__ void forever(volatile int *x) {
    while (*x == 0) {
    }  // line: endless
    x[0] = 1;
}

__global__ void shuffled(int *x, int limit) {
    int v = x[threadIdx.x];
    if (threadIdx.x < limit) v = __shfl_down_sync(0xffffffff, v, 1);  // line: lanes are missing
    x[threadIdx.x] = v;
}

__global__ void inactive(int *x) {
    int v = x[threadIdx.x];
    if (threadIdx.x < 16) v = __shfl_sync(0xffff, v, 20);  // line: outside the mask
    x[threadIdx.x] = v;
}

__global__ void blocks(int *x, int atomic) {
    if (atomic) atomicAdd(x, 1);
    else *x += 1;  // line: every block
}

__global__ void neighbours(int *x) {
    // Reads what the next block writes.
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    x[i] = x[i + 1];  // line: next block
}

__global__ void misaligned(const char *x, float *y) {
    y[0] = *(const float *)(x + 2);  // line: odd address
}

__global__ void local_unset(const int *x, int *y) {
    int a[8];
    for (int i = 0; i < 7; i++) a[x[i] & 7] = i;
    y[0] = a[x[7] & 7];  // line: never set
}

__global__ void asserts(const int *x) {
    if (x[0] != 7) __trap();  // line: trapped
}

__global__ void copied(const int4 *x, int4 *y, int wait) {
    __shared__ int4 s[32];
    unsigned to = (unsigned)__cvta_generic_to_shared(&s[threadIdx.x]);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(x + threadIdx.x));
    asm volatile("cp.async.commit_group;");
    if (wait) asm volatile("cp.async.wait_group 0;");
    __syncthreads();
    y[threadIdx.x] = s[31 - threadIdx.x];  // line: too early
}

__global__ void sixteen(const unsigned short *x, unsigned short *y, int barrier) {
    __shared__ unsigned short s[64];
    s[threadIdx.x] = x[threadIdx.x];
    if (barrier) __syncthreads();
    y[threadIdx.x] = s[63 - threadIdx.x];  // line: half words
}
}
