// The largest of each 2 by 2 window, of images with COLS columns: two windows an invocation.
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> out: array<vec2<f32>>;

const QUADS = COLS / 4u;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    if i < arrayLength(&out) {
        let above = (i / QUADS) * 2u * QUADS + i % QUADS;
        let v = max(x[above], x[above + QUADS]);
        out[i] = max(v.xz, v.yw);
    }
}
