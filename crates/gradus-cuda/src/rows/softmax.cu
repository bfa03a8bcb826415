// Softmax or, if LOG is set, its logarithm, along a line.

#if FORWARD
KERNEL softmax(const T* __restrict__ x, T* __restrict__ y, PARAMETERS) {
    FOR_EACH_LINE(l) {
        HELD(held);
        A largest = -infinity();
        each(l, [&](u32 j, int i) {
            const Elements e = HOLD(held, i, load(x, at(p, l, 0, j)));
            ALL(k) largest = Larger::of(largest, e.v[k]);
        });
        const A top = largest_of(largest);
        A total = 0;
        each(l, [&](u32 j, int i) {
            Elements e = AGAIN(held, i, load(x, at(p, l, 0, j)));
            ALL(k) e.v[k] = exp_of(e.v[k] - top);
#if PER && !LOG
            held[i] = e;
#endif
            ALL(k) total += e.v[k];
        });
        const A sum = sum_of(total);
#if LOG
        const A shift = log_of(sum);
#endif
        each(l, [&](u32 j, int i) {
            Elements e = AGAIN(held, i, load(x, at(p, l, 0, j)));
#if !PER && !LOG
            ALL(k) e.v[k] = exp_of(e.v[k] - top);
#endif
#if LOG
            ALL(k) e.v[k] = e.v[k] - top - shift;
#else
            ALL(k) e.v[k] = e.v[k] / sum;
#endif
            store(y, at(p, l, 1, j), e);
        });
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
            const Elements of_y = HOLD(ys, i, load(y, at(p, l, 0, j))), of_g = HOLD(gs, i, load(g, at(p, l, 1, j)));
            ALL(k) total += LOG ? of_g.v[k] : of_g.v[k] * of_y.v[k];
        });
        const A sum = sum_of(total);
        each(l, [&](u32 j, int i) {
            const Elements of_y = AGAIN(ys, i, load(y, at(p, l, 0, j))), of_g = AGAIN(gs, i, load(g, at(p, l, 1, j)));
            Elements d;
            ALL(k) d.v[k] = LOG ? of_g.v[k] - exp_of(of_y.v[k]) * sum : of_y.v[k] * (of_g.v[k] - sum);
            store(dx, at(p, l, 2, j), d);
        });
    }
}
#endif
