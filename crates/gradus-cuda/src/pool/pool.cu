// Pooling: a thread computes one element of the result, going through its window in order. There are always three
// spatial axes, of which the first may have size 1.
//
// PASS: 0 for the maximum, 1 for the mean, 2 for the gradient of the mean. COUNT_PAD: whether padding counts as zeros.

struct Pool {
    i64 tasks;
    i64 x[5], y[5], indices[5];     // strides along samples, channels and spatial axes
    int channels;
    int size[3], kernel[3], stride[3], dilation[3], pad[3], positions[3];
};

// The taps first..end of the window at a position that lie within an axis.
INLINE void inside(const Pool& p, int axis, int position, int& first, int& end) {
    const int start = position * p.stride[axis] - p.pad[axis], d = p.dilation[axis];
    first = start >= 0 ? 0 : min((-start + d - 1) / d, p.kernel[axis]);
    end = start >= p.size[axis] ? first : max(first, min((p.size[axis] - 1 - start) / d + 1, p.kernel[axis]));
}

// The number of elements that the mean counts at a position.
INLINE A counted(const Pool& p, const int* position) {
    A count = 1;
#pragma unroll
    for (int axis = 0; axis < 3; axis++) {
        int first, end;
        inside(p, axis, position[axis], first, end);
        count *= (A)(COUNT_PAD ? p.kernel[axis] : end - first);
    }
    return count;
}

// Splits the number of an element of [samples, channels, sizes..].
INLINE void coordinates(const Pool& p, i64 task, const int* sizes, i64& sample, i64& channel, int* at) {
#pragma unroll
    for (int axis = 2; axis >= 0; axis--) {
        at[axis] = (int)(task % sizes[axis]);
        task /= sizes[axis];
    }
    channel = task % p.channels;
    sample = task / p.channels;
}

INLINE i64 position_of(const i64* steps, i64 sample, i64 channel) { return sample * steps[0] + channel * steps[1]; }

extern "C" __global__ void __launch_bounds__(256) pool(const T* __restrict__ from, T* __restrict__ to, i64* __restrict__ indices, const __grid_constant__ Pool p) {
    for (i64 task = (i64)blockIdx.x * 256 + threadIdx.x; task < p.tasks; task += (i64)gridDim.x * 256) {
        i64 sample, channel;
        int at[3];
#if PASS == 2
        // Here `from` is the gradient of the mean, and the element is one of x.
        coordinates(p, task, p.size, sample, channel, at);
        const T* g = from + position_of(p.y, sample, channel);
        A sum = 0;
        int place[3];
        for (int i = 0; i < p.kernel[0]; i++) {
            const int a = at[0] + p.pad[0] - i * p.dilation[0];
            place[0] = a / p.stride[0];
            if (a < 0 || a % p.stride[0] != 0 || place[0] >= p.positions[0]) continue;
            for (int j = 0; j < p.kernel[1]; j++) {
                const int b = at[1] + p.pad[1] - j * p.dilation[1];
                place[1] = b / p.stride[1];
                if (b < 0 || b % p.stride[1] != 0 || place[1] >= p.positions[1]) continue;
                for (int k = 0; k < p.kernel[2]; k++) {
                    const int c = at[2] + p.pad[2] - k * p.dilation[2];
                    place[2] = c / p.stride[2];
                    if (c < 0 || c % p.stride[2] != 0 || place[2] >= p.positions[2]) continue;
                    sum += widen(g[place[0] * p.y[2] + place[1] * p.y[3] + place[2] * p.y[4]]) / counted(p, place);
                }
            }
        }
        to[position_of(p.x, sample, channel) + at[0] * p.x[2] + at[1] * p.x[3] + at[2] * p.x[4]] = narrow<T>(sum);
#else
        coordinates(p, task, p.positions, sample, channel, at);
        const T* x = from + position_of(p.x, sample, channel);
        int first[3], end[3], start[3];
#pragma unroll
        for (int axis = 0; axis < 3; axis++) {
            inside(p, axis, at[axis], first[axis], end[axis]);
            start[axis] = at[axis] * p.stride[axis] - p.pad[axis];
        }
        A value = 0;
#if PASS == 0
        i64 index = -1;
#endif
        for (int i = first[0]; i < end[0]; i++) {
            const int a = start[0] + i * p.dilation[0];
            for (int j = first[1]; j < end[1]; j++) {
                const int b = start[1] + j * p.dilation[1];
                for (int k = first[2]; k < end[2]; k++) {
                    const int c = start[2] + k * p.dilation[2];
                    const A v = widen(x[a * p.x[2] + b * p.x[3] + c * p.x[4]]);
#if PASS == 0
                    // NaN is the largest; of equal elements the first wins.
                    if (index < 0 || v > value || (v != v && value == value)) {
                        value = v;
                        index = ((i64)a * p.size[1] + b) * p.size[2] + c;
                    }
#else
                    value += v;
#endif
                }
            }
        }
        const i64 into = position_of(p.y, sample, channel) + at[0] * p.y[2] + at[1] * p.y[3] + at[2] * p.y[4];
#if PASS == 0
        to[into] = narrow<T>(value);
        indices[position_of(p.indices, sample, channel) + at[0] * p.indices[2] + at[1] * p.indices[3] + at[2] * p.indices[4]] = index;
#else
        to[into] = narrow<T>(value / counted(p, at));
#endif
#endif
    }
}
