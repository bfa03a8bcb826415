// The sum of each row of COLS elements, a multiple of 256: one work-group a row, then a tree.
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

const QUADS = COLS / 4u;
var<workgroup> part: array<f32, 64>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) row: vec3<u32>) {
    var sum = vec4(0.0);
    for (var i = 0u; i < QUADS; i += 64u) {
        sum += x[row.x * QUADS + i + lane];
    }
    part[lane] = sum.x + sum.y + sum.z + sum.w;
    for (var half = 32u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if lane < half {
            part[lane] += part[lane + half];
        }
    }
    if lane == 0u {
        out[row.x] = part[0];
    }
}
