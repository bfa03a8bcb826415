// The largest of each 2 by 2 window of images with COLS rows and columns, and its place in the image as an integer of 64 bits, the first
// of several: two windows an invocation.
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> out: array<vec2<f32>>;
@group(0) @binding(2) var<storage, read_write> places: array<vec4<u32>>;

const QUADS = COLS / 4u;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    if i < arrayLength(&out) {
        let row = i / QUADS * 2u;
        let above = x[row * QUADS + i % QUADS];
        let below = x[(row + 1u) * QUADS + i % QUADS];
        var best = above.xz;
        let corner = row % COLS * COLS + i % QUADS * 4u;
        var at = vec2(corner, corner + 2u);
        let candidates = array(above.yw, below.xz, below.yw);
        let steps = array(1u, COLS, COLS + 1u);
        for (var k = 0u; k < 3u; k++) {
            let v = candidates[k];
            at = select(at, vec2(corner, corner + 2u) + vec2(steps[k]), v > best);
            best = max(best, v);
        }
        out[i] = best;
        places[i] = vec4(at.x, 0u, at.y, 0u);
    }
}
