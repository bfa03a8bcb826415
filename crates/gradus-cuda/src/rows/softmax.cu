// Softmax or, if LOG is set, its logarithm, along a line.

#if FORWARD
KERNEL softmax(const T* __restrict__ x, T* __restrict__ y, PARAMETERS) {
    FOR_EACH_LINE(l) {
        HELD(xs, l, x, 0);
        A largest = -infinity();
        EACH(l) {
            const auto e = AGAIN(xs, l, x, 0);
            ALL(k) largest = Larger::of(largest, e.v[k]);
        });
        const A top = largest_of(largest);
#if PER && !LOG
        Elements<WIDE> powers[PER];
#endif
        A total = 0;
        EACH(l) {
            auto e = AGAIN(xs, l, x, 0);
            ALL(k) e.v[k] = exp_of(e.v[k] - top);
#if PER && !LOG
            powers[i] = e;
#endif
            ALL(k) total += e.v[k];
        });
        const A sum = sum_of(total);
#if LOG
        const A shift = log_of(sum);
#else
        const A share = 1 / sum;
#endif
        EACH(l) {
#if PER && !LOG
            auto e = powers[i];
#else
            auto e = AGAIN(xs, l, x, 0);
#endif
#if LOG
            ALL(k) e.v[k] = e.v[k] - top - shift;
#else
#if !PER
            ALL(k) e.v[k] = exp_of(e.v[k] - top);
#endif
            ALL(k) e.v[k] = e.v[k] * share;
#endif
            store(y, at(p, l, 1, j), e);
        });
    }
}
#endif

#if BACKWARD
KERNEL softmax_backward(const T* __restrict__ y, const T* __restrict__ g, T* __restrict__ dx, PARAMETERS) {
    FOR_EACH_LINE(l) {
        HELD(ys, l, y, 0);
        HELD(gs, l, g, 1);
        A total = 0;
        EACH(l) {
            const auto of_y = AGAIN(ys, l, y, 0), of_g = AGAIN(gs, l, g, 1);
            ALL(k) total += LOG ? of_g.v[k] : of_g.v[k] * of_y.v[k];
        });
        const A sum = sum_of(total);
        EACH(l) {
            const auto of_y = AGAIN(ys, l, y, 0), of_g = AGAIN(gs, l, g, 1);
            Elements<WIDTH> d;
            ALL(k) d.v[k] = LOG ? of_g.v[k] - exp_of(of_y.v[k]) * sum : of_y.v[k] * (of_g.v[k] - sum);
            store(dx, at(p, l, 2, j), d);
        });
    }
}
#endif
