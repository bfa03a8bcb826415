// The layer norm of each row of COLS elements, a multiple of 256: one work-group a row, which stays in registers. The mean
// comes first, then the mean of squared differences.
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> scale: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> shift: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> out: array<vec4<f32>>;

const QUADS = COLS / 4u;
const EACH = QUADS / 64u;
var<workgroup> part: array<f32, 64>;

fn total(lane: u32, v: vec4<f32>) -> f32 {
    workgroupBarrier();
    part[lane] = v.x + v.y + v.z + v.w;
    for (var half = 32u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if lane < half {
            part[lane] += part[lane + half];
        }
    }
    workgroupBarrier();
    return part[0];
}

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) row: vec3<u32>) {
    let at = row.x * QUADS + lane;
    var v: array<vec4<f32>, EACH>;
    var sum = vec4(0.0);
    for (var i = 0u; i < EACH; i++) {
        v[i] = x[at + i * 64u];
        sum += v[i];
    }
    let mean = total(lane, sum) / f32(COLS);
    var squares = vec4(0.0);
    for (var i = 0u; i < EACH; i++) {
        v[i] -= mean;
        squares += v[i] * v[i];
    }
    let factor = inverseSqrt(total(lane, squares) / f32(COLS) + 1e-5);
    for (var i = 0u; i < EACH; i++) {
        out[at + i * 64u] = v[i] * factor * scale[i * 64u + lane] + shift[i * 64u + lane];
    }
}
