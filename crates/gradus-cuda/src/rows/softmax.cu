// Softmax or, if LOG is set, its logarithm, along a line.

#if FORWARD
KERNEL softmax(const T* __restrict__ x, T* __restrict__ y, PARAMETERS) {
    FOR_EACH_LINE(l) {
        HELD(held);
        A largest = -infinity();
        each(l, [&](u32 j, int i) { largest = Larger::of(largest, HOLD(held, i, widen(x[at(p, l, 0, j)]))); });
        const A top = largest_of(largest);
        A total = 0;
        each(l, [&](u32 j, int i) {
            A e = exp_of(AGAIN(held, i, widen(x[at(p, l, 0, j)])) - top);
#if PER && !LOG
            held[i] = e;
#endif
            total += e;
        });
        const A sum = sum_of(total);
#if LOG
        const A shift = log_of(sum);
        each(l, [&](u32 j, int i) { y[at(p, l, 1, j)] = narrow<T>(AGAIN(held, i, widen(x[at(p, l, 0, j)])) - top - shift); });
#else
        each(l, [&](u32 j, int i) { y[at(p, l, 1, j)] = narrow<T>(AGAIN(held, i, exp_of(widen(x[at(p, l, 0, j)]) - top)) / sum); });
#endif
    }
}
#endif

#if BACKWARD
KERNEL softmax_backward(const T* __restrict__ y, const T* __restrict__ g, T* __restrict__ dx, PARAMETERS) {
    FOR_EACH_LINE(l) {
        HELD(ys);
        HELD(gs);
        A total = 0;
        each(l, [&](u32 j, int i) {
            A of_y = HOLD(ys, i, widen(y[at(p, l, 0, j)])), of_g = HOLD(gs, i, widen(g[at(p, l, 1, j)]));
            total += LOG ? of_g : of_g * of_y;
        });
        const A sum = sum_of(total);
        each(l, [&](u32 j, int i) {
            A of_y = AGAIN(ys, i, widen(y[at(p, l, 0, j)])), of_g = AGAIN(gs, i, widen(g[at(p, l, 1, j)]));
            dx[at(p, l, 2, j)] = narrow<T>(LOG ? of_g - exp_of(of_y) * sum : of_y * (of_g - sum));
        });
    }
}
#endif
