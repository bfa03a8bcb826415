// Softmax of each row of COLS elements, a multiple of 256: one work-group a row, which stays in registers.
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> out: array<vec4<f32>>;

const QUADS = COLS / 4u;
const EACH = QUADS / 64u;
var<workgroup> part: array<f32, 64>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) row: vec3<u32>) {
    let at = row.x * QUADS + lane;
    var v: array<vec4<f32>, EACH>;
    var most = vec4(-3.4e38);
    for (var i = 0u; i < EACH; i++) {
        v[i] = x[at + i * 64u];
        most = max(most, v[i]);
    }
    part[lane] = max(max(most.x, most.y), max(most.z, most.w));
    for (var half = 32u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if lane < half {
            part[lane] = max(part[lane], part[lane + half]);
        }
    }
    workgroupBarrier();
    let highest = part[0];
    var sum = vec4(0.0);
    for (var i = 0u; i < EACH; i++) {
        v[i] = exp(v[i] - highest);
        sum += v[i];
    }
    workgroupBarrier();
    part[lane] = sum.x + sum.y + sum.z + sum.w;
    for (var half = 32u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if lane < half {
            part[lane] += part[lane + half];
        }
    }
    workgroupBarrier();
    let factor = 1.0 / part[0];
    for (var i = 0u; i < EACH; i++) {
        out[at + i * 64u] = v[i] * factor;
    }
}
