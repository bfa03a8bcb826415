//! Rows of colours from planes of brightness and chroma, as libjpeg-turbo computes them: chroma of half the resolution is
//! interpolated by a triangle, and colours are JFIF's (<https://www.w3.org/Graphics/JPEG/jfif3.pdf>).

/// The samples of a channel: rows of whole blocks, of which `width` x `height` samples belong to the picture.
#[derive(Debug, Default)]
pub(super) struct Plane {
    pub(super) values: Vec<u8>,
    pub(super) stride: usize,
    pub(super) width: usize,
    pub(super) height: usize,
}

impl Plane {
    fn row(&self, y: usize) -> &[u8] {
        &self.values[y * self.stride..][..self.width]
    }
}

/// Brightness, and in a colour picture the two planes of chroma, which may be coarser by the factors `coarser`, 1 or 2.
#[derive(Debug)]
pub(super) struct Planes {
    pub(super) luma: Plane,
    pub(super) chroma: Option<[Plane; 2]>,
    pub(super) coarser: [usize; 2],
}

/// A pixel of the result.
pub(crate) trait Pixel: Copy {
    fn new(rgb: [u8; 3]) -> Self;
}

/// For grey pictures.
impl Pixel for [u8; 1] {
    #[inline(always)]
    fn new([r, ..]: [u8; 3]) -> Self {
        [r]
    }
}

impl Pixel for [u8; 3] {
    #[inline(always)]
    fn new(rgb: [u8; 3]) -> Self {
        rgb
    }
}

impl Pixel for [u8; 4] {
    #[inline(always)]
    fn new([r, g, b]: [u8; 3]) -> Self {
        [r, g, b, 255]
    }
}

impl Planes {
    /// Fills `out` with the pixels of row `y` from column `left` on. `spare` is memory for the rows of chroma.
    pub(super) fn row<P: Pixel>(&self, y: usize, left: usize, out: &mut [P], spare: &mut [Vec<i16>; 3]) {
        let luma = &self.luma.row(y)[left..][..out.len()];
        let Some(chroma) = &self.chroma else {
            out.iter_mut().zip(luma).for_each(|(out, &v)| *out = P::new([v; 3]));
            return;
        };
        let [first, second, sums] = spare;
        let mut skip = 0;
        for (plane, fine) in chroma.iter().zip([&mut *first, &mut *second]) {
            skip = upsampled(plane, self.coarser, y, left, out.len(), fine, sums);
        }
        let (first, second) = (&first[skip..][..out.len()], &second[skip..][..out.len()]);
        for (((out, &y), &cb), &cr) in out.iter_mut().zip(luma).zip(first).zip(second) {
            *out = P::new(rgb(i16::from(y), cb - 128, cr - 128));
        }
    }
}

/// A product that needs no more than 32 bits.
#[inline(always)]
fn part(x: i16, factor: i16) -> i32 {
    i32::from(x) * i32::from(factor)
}

/// Red, green and blue are `y + 1.402 cr`, `y - 0.344136 cb - 0.714136 cr` and `y + 1.772 cb`. The factors have 16 bits
/// behind the point. Whole multiples are split off, so that the rest fits into 16 bits.
#[inline(always)]
fn rgb(y: i16, cb: i16, cr: i16) -> [u8; 3] {
    const HALF: i32 = 1 << 15;
    let red = y + cr + ((part(cr, 26_345) + HALF) >> 16) as i16;
    let green = y - cr + ((part(cb, -22_554) + part(cr, 18_734) + HALF) >> 16) as i16;
    let blue = y + 2 * cb + ((part(cb, -14_942) + HALF) >> 16) as i16;
    [red, green, blue].map(|v| v.clamp(0, 255) as u8)
}

/// Fills `fine` with chroma of the resolution of the picture, for `count` columns from `left` on, and returns the index
/// of that of column `left`.
fn upsampled(
    plane: &Plane,
    coarser: [usize; 2],
    y: usize,
    left: usize,
    count: usize,
    fine: &mut Vec<i16>,
    sums: &mut Vec<i16>,
) -> usize {
    fine.clear();
    let [across, down] = coarser;
    if across == 1 {
        fine.extend(plane.row(y)[left..][..count].iter().map(|&v| i16::from(v)));
        return 0;
    }
    let (start, end) = (left / 2, (left + count).div_ceil(2));
    // libjpeg repeats samples if there are only one or two.
    if plane.width <= 2 {
        let row = plane.row(y / down);
        fine.extend((2 * start..2 * end).map(|x| i16::from(row[x / 2])));
        return left - 2 * start;
    }
    // With a column more at each side. Behind an edge is the sample at the edge.
    let (from, to) = (start.saturating_sub(1), (end + 1).min(plane.width));
    sums.clear();
    if from == start {
        sums.push(0);
    }
    if down == 1 {
        sums.extend(plane.row(y)[from..to].iter().map(|&v| 4 * i16::from(v)));
    } else {
        let near = y / 2;
        let far = if y.is_multiple_of(2) { near.saturating_sub(1) } else { (near + 1).min(plane.height - 1) };
        let (near, far) = (&plane.row(near)[from..to], &plane.row(far)[from..to]);
        sums.extend(near.iter().zip(far).map(|(&near, &far)| 3 * i16::from(near) + i16::from(far)));
    }
    if from == start {
        sums[0] = sums[1];
    }
    if to == end {
        sums.extend_from_within(sums.len() - 1..);
    }
    // 16 parts of the sum, or 4 parts (times 4) if there is no sum of rows.
    let rounding = if down == 1 { [4, 8] } else { [8, 7] };
    fine.resize(2 * (end - start), 0); // at most a row and a pixel
    let (pairs, _) = fine.as_chunks_mut::<2>();
    for (pair, around) in pairs.iter_mut().zip(sums.windows(3)) {
        let middle = 3 * around[1];
        *pair = [(middle + around[0] + rounding[0]) >> 4, (middle + around[2] + rounding[1]) >> 4];
    }
    left - 2 * start
}
