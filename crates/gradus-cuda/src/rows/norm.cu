// Normalisation along a line, and its gradients. RMS: the mean is taken to be 0. SCALE, SHIFT: whether there are such
// operands, which then follow the others.

#define SHIFT_AT (4 + SCALE)
#if SCALE
#define SCALE_OPERAND const T* __restrict__ scale,
#else
#define SCALE_OPERAND
#endif
#if SHIFT
#define SHIFT_OPERAND const T* __restrict__ shift,
#else
#define SHIFT_OPERAND
#endif

#if FORWARD
// The operands are x, y, mean, rstd, scale, shift. The numbers are eps, and the factor and the limit of large rows.
KERNEL normalize(const T* __restrict__ x, T* __restrict__ y, A* __restrict__ means, A* __restrict__ rstds, SCALE_OPERAND SHIFT_OPERAND PARAMETERS) {
    FOR_EACH_LINE(l) {
        HELD(held);
        const A n = (A)p.n, eps = p.numbers[0], down = p.numbers[1], limit = p.numbers[2];
        A centre = 0, total = 0;
        each(l, [&](u32 j, int i) {
            const Elements e = HOLD(held, i, load(x, at(p, l, 0, j)));
            ALL(k) total += e.v[k];
        });
#if !RMS
        centre = sum_of(total) / n;
#endif
        total = 0;
        each(l, [&](u32 j, int i) {
            const Elements e = AGAIN(held, i, load(x, at(p, l, 0, j)));
            ALL(k) {
                const A d = e.v[k] - centre;
                total = multiply_add(d, d, total);
            }
        });
        const A variance = sum_of(total) / n;
        A mean = centre, rstd = rsqrt_of(variance + eps);
        A factor = 1, first = 0, middle = mean, spread = rstd;
        // If squares or sums of finite elements overflow, or the mean is large, the statistics are computed from scaled
        // elements. Each element is multiplied by a power of two, and the first scaled element is subtracted, so that
        // equal elements have deviations of exactly 0. Lines of one block differ in this, but the sums are shared.
        const bool large = l.end > l.first && !(finite(variance) && (centre < 0 ? -centre : centre) < limit);
        if (__syncthreads_or(large)) {
            A start = 0, shifted = 0, part = 0;
#if !RMS
            if (l.end > l.first) start = widen(x[at(p, l, 0, 0)]) * down;
            each(l, [&](u32 j, int i) {
                const Elements e = AGAIN(held, i, load(x, at(p, l, 0, j)));
                ALL(k) part += e.v[k] * down - start;
            });
            shifted = sum_of(part) / n;
            part = 0;
#endif
            each(l, [&](u32 j, int i) {
                const Elements e = AGAIN(held, i, load(x, at(p, l, 0, j)));
                ALL(k) {
                    const A d = e.v[k] * down - start - shifted;
                    part = multiply_add(d, d, part);
                }
            });
            const A scaled = sum_of(part) / n;
            if (large && finite(scaled)) {
                factor = down;
                first = start;
                middle = shifted;
                mean = (start + shifted) / factor;
                if (scaled == 0) {
                    spread = 1;
                    rstd = rsqrt_of(eps);
                } else {
                    spread = rsqrt_of(scaled + eps * factor * factor);
                    rstd = spread * factor;
                }
            }
        }
        if (is_first(l)) {
            means[l.base[2]] = mean;
            rstds[l.base[3]] = rstd;
        }
        each(l, [&](u32 j, int i) {
            Elements e = AGAIN(held, i, load(x, at(p, l, 0, j)));
            ALL(k) e.v[k] = (e.v[k] * factor - first - middle) * spread;
#if SCALE
            const Elements by = load(scale, at(p, l, 4, j));
            ALL(k) e.v[k] = e.v[k] * by.v[k];
#endif
#if SHIFT
            const Elements plus = load(shift, at(p, l, SHIFT_AT, j));
            ALL(k) e.v[k] = e.v[k] + plus.v[k];
#endif
            store(y, at(p, l, 1, j), e);
        });
    }
}
#endif

#if BACKWARD
// The operands are x, g, dx, mean, rstd, scale.
KERNEL normalize_backward(const T* __restrict__ x, const T* __restrict__ g, T* __restrict__ dx, const A* __restrict__ means, const A* __restrict__ rstds, SCALE_OPERAND PARAMETERS) {
    FOR_EACH_LINE(l) {
        HELD(hs);
        HELD(ns);
        const bool live = l.end > l.first;
        const A centre = live ? means[l.base[3]] : 0, spread = live ? rstds[l.base[4]] : 0;
        auto h_of = [&](u32 j) {
            Elements h = load(g, at(p, l, 1, j));
#if SCALE
            const Elements by = load(scale, at(p, l, 5, j));
            ALL(k) h.v[k] = h.v[k] * by.v[k];
#endif
            return h;
        };
        auto n_of = [&](u32 j) {
            Elements n = load(x, at(p, l, 0, j));
            ALL(k) n.v[k] = (n.v[k] - centre) * spread;
            return n;
        };
        A sum_h = 0, sum_hn = 0;
        each(l, [&](u32 j, int i) {
            const Elements h = HOLD(hs, i, h_of(j)), n = HOLD(ns, i, n_of(j));
            ALL(k) {
                sum_h += h.v[k];
                sum_hn = multiply_add(h.v[k], n.v[k], sum_hn);
            }
        });
        const A mean_hn = sum_of(sum_hn) / (A)p.n;
#if RMS
        const A mean_h = 0;
#else
        const A mean_h = sum_of(sum_h) / (A)p.n;
#endif
        each(l, [&](u32 j, int i) {
            const Elements h = AGAIN(hs, i, h_of(j)), n = AGAIN(ns, i, n_of(j));
            Elements d;
            ALL(k) d.v[k] = spread * (h.v[k] - mean_h - n.v[k] * mean_hn);
            store(dx, at(p, l, 2, j), d);
        });
    }
}
#endif

#if AFFINE
// Sums of g * (x - mean) * rstd and of g. The operands are g, x, mean, rstd, dscale, dshift. If lines are cut, each part
// writes its sums as if they were the next lines of contiguous results.
KERNEL normalize_affine_backward(const T* __restrict__ g, const T* __restrict__ x, const A* __restrict__ means, const A* __restrict__ rstds, A* __restrict__ dscale, A* __restrict__ dshift, PARAMETERS) {
    FOR_EACH_LINE(l) {
        A sum_gn = 0, sum_g = 0;
        each(l, [&](u32 j, int) {
            A of_g = widen(g[at(p, l, 0, j)]);
            A n = (widen(x[at(p, l, 1, j)]) - means[at(p, l, 2, j)]) * rstds[at(p, l, 3, j)];
            sum_gn = multiply_add(of_g, n, sum_gn);
            sum_g += of_g;
        });
        const A gn = sum_of(sum_gn);
#if SHIFT
        const A all_g = sum_of(sum_g);
#endif
        if (is_first(l)) {
            const i64 to = p.parts > 1 ? l.part * p.lines + l.number : l.base[4];
            dscale[to] = gn;
#if SHIFT
            dshift[p.parts > 1 ? to : l.base[5]] = all_g;
#endif
        }
    }
}
#endif
