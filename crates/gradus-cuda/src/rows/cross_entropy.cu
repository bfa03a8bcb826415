// Cross-entropy of rows of logits, and its gradient. I: type of the targets. IGNORE: rows with the target `ignore` have
// no loss. SMOOTH: label smoothing; the numbers are the shares of the target and of every class.

INLINE bool ignored(const Rows& p, i64 target) { return IGNORE && target == p.ignore; }
// Reports a target that is no class.
INLINE void check(const Rows& p, u64* fault, const Line& l, i64 target) {
    if (target < 0 || target >= p.n) bad_index(fault, (u32)l.number, target, p.n);
}

#if FORWARD
// The operands are logits, target, loss, lse.
KERNEL cross_entropy(const T* __restrict__ x, const I* __restrict__ target, A* __restrict__ loss, A* __restrict__ lse, u64* fault, PARAMETERS) {
    FOR_EACH_LINE(l) {
        HELD(xs, l, x, 0);
        A largest = -infinity();
        EACH(l) {
            const auto e = AGAIN(xs, l, x, 0);
            ALL(k) largest = Larger::of(largest, e.v[k]);
        });
        const A top = largest_of(largest);
        // Infinite elements keep their effect.
        const A shift = finite(top) ? top : (A)0;
        A total = 0, all = 0;
        EACH(l) {
            const auto e = AGAIN(xs, l, x, 0);
            ALL(k) {
                const A v = e.v[k] - shift;
                total += exp_of(v);
                all += v;
            }
        });
        const A log_sum = log_of(sum_of(total));
#if SMOOTH
        const A every = sum_of(all);
#endif
        if (is_first(l)) {
            const i64 t = (i64)target[l.base[1]];
            A value = 0;
            if (!ignored(p, t)) {
                check(p, fault, l, t);
                const A chosen = widen(x[at(p, l, 0, (u32)min(max(t, (i64)0), (i64)p.n - 1))]) - shift;
#if SMOOTH
                value = log_sum - p.numbers[0] * chosen - p.numbers[1] * every;
#else
                value = log_sum - chosen;
#endif
            }
            loss[l.base[2]] = value;
            lse[l.base[3]] = shift + log_sum;
        }
    }
}
#endif

#if BACKWARD
// The operands are logits, target, lse, g, dlogits.
KERNEL cross_entropy_backward(const T* __restrict__ x, const I* __restrict__ target, const A* __restrict__ lse, const A* __restrict__ g, T* __restrict__ dx, u64* fault, PARAMETERS) {
    FOR_EACH_LINE(l) {
        if (l.end > l.first) {
            const i64 t = (i64)target[l.base[1]];
            const A shift = lse[l.base[2]], slope = g[l.base[3]];
            const bool skip = ignored(p, t);
            if (!skip && l.lane == 0) check(p, fault, l, t);
            EACH(l) {
                auto e = load(w, x, at(p, l, 0, j));
                ALL(k) e.v[k] = exp_of(e.v[k] - shift);
                // Both shares at once, because those of a single class add up to exactly 1.
                if ((u64)(t - j) < WIDTH) {
                    ALL(k) e.v[k] -= j + k == t ? p.numbers[0] + p.numbers[1] : p.numbers[1];
                } else {
                    ALL(k) e.v[k] -= p.numbers[1];
                }
                ALL(k) e.v[k] = skip ? (A)0 : slope * e.v[k];
                store(dx, at(p, l, 4, j), e);
            });
        }
    }
}
#endif
