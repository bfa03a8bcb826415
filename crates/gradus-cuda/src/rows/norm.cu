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
        HELD(xs, l, x, 0);
        const A n = (A)p.n, eps = p.numbers[0], down = p.numbers[1], limit = p.numbers[2];
        A centre = 0, total = 0;
#if !RMS
        EACH(l) {
            const auto e = AGAIN(xs, l, x, 0);
            ALL(k) total += e.v[k];
        });
        centre = sum_of(total) / n;
        total = 0;
#endif
        EACH(l) {
            const auto e = AGAIN(xs, l, x, 0);
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
        if (any_of(large)) {
            A start = 0, shifted = 0, part = 0;
#if !RMS
            if (l.end > l.first) start = widen(x[at(p, l, 0, 0)]) * down;
            EACH(l) {
                const auto e = AGAIN(xs, l, x, 0);
                ALL(k) part += e.v[k] * down - start;
            });
            shifted = sum_of(part) / n;
            part = 0;
#endif
            EACH(l) {
                const auto e = AGAIN(xs, l, x, 0);
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
        EACH(l) {
            auto e = AGAIN(xs, l, x, 0);
            ALL(k) e.v[k] = (multiply_add(e.v[k], factor, -first) - middle) * spread;
#if SCALE
            const auto by = load(w, scale, at(p, l, 4, j));
#endif
#if SHIFT
            const auto plus = load(w, shift, at(p, l, SHIFT_AT, j));
#endif
#if SCALE && SHIFT
            ALL(k) e.v[k] = multiply_add(e.v[k], by.v[k], plus.v[k]);
#elif SCALE
            ALL(k) e.v[k] = e.v[k] * by.v[k];
#elif SHIFT
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
        HELD(xs, l, x, 0);
        HELD(gs, l, g, 1);
        const bool live = l.end > l.first;
        const A centre = live ? means[l.base[3]] : 0, spread = live ? rstds[l.base[4]] : 0;
        // The gradient of the normalised elements, and these. The former overwrites the elements of g.
        auto prepare = [&](auto w, u32 j, auto& h, auto& n) {
#if SCALE
            const auto by = load(w, scale, at(p, l, 5, j));
            ALL(k) h.v[k] = h.v[k] * by.v[k];
#endif
            ALL(k) n.v[k] = (n.v[k] - centre) * spread;
        };
        A sums[2 - RMS] = {};
        EACH(l) {
            auto n = AGAIN(xs, l, x, 0), h = AGAIN(gs, l, g, 1);
            prepare(w, j, h, n);
            ALL(k) {
                sums[0] = multiply_add(h.v[k], n.v[k], sums[0]);
#if !RMS
                sums[1] += h.v[k];
#endif
            }
        });
        combine<Plus>(sums);
        const A mean_hn = sums[0] / (A)p.n;
#if RMS
        const A mean_h = 0;
#else
        const A mean_h = sums[1] / (A)p.n;
#endif
        EACH(l) {
            auto n = AGAIN(xs, l, x, 0), h = AGAIN(gs, l, g, 1);
            prepare(w, j, h, n);
            ALL(k) h.v[k] = spread * (h.v[k] - mean_h - n.v[k] * mean_hn);
            store(dx, at(p, l, 2, j), h);
        });
    }
}
#endif

#if AFFINE
// Sums of g * (x - mean) * rstd and of g. The operands are g, x, mean, rstd, dscale, dshift. If lines are cut, the sums of the
// parts of a line lie side by side. BESIDE neighbouring lines share a mean.
KERNEL normalize_affine_backward(const T* __restrict__ g, const T* __restrict__ x, const A* __restrict__ means, const A* __restrict__ rstds, A* __restrict__ dscale, A* __restrict__ dshift, PARAMETERS) {
    FOR_EACH_LINE(l) {
        A sums[BESIDE * (1 + SHIFT)] = {};
#pragma unroll 4
        for (u32 j = l.first + l.lane; j < l.end; j += LANES) {
            const auto of_g = load(Wide<BESIDE>(), g, at(p, l, 0, j)), of_x = load(Wide<BESIDE>(), x, at(p, l, 1, j));
            const A mean = means[at(p, l, 2, j)], rstd = rstds[at(p, l, 3, j)];
#pragma unroll
            for (int k = 0; k < BESIDE; k++) {
                sums[k] = multiply_add(of_g.v[k], (of_x.v[k] - mean) * rstd, sums[k]);
#if SHIFT
                sums[BESIDE + k] += of_g.v[k];
#endif
            }
        }
        combine<Plus>(sums);
        if (is_first(l)) {
#pragma unroll
            for (int k = 0; k < BESIDE; k++) {
                const i64 to = (l.number * BESIDE + k) * p.parts + l.part;
                dscale[p.parts > 1 ? to : l.base[4] + k] = sums[k];
#if SHIFT
                dshift[p.parts > 1 ? to : l.base[5] + k] = sums[BESIDE + k];
#endif
            }
        }
    }
}
#endif
