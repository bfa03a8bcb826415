// The running sums of each row of COLS elements, a multiple of 256: one work-group a row. Each invocation sums its stretch,
// and the sums before it come from a scan in workgroup memory.
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> out: array<vec4<f32>>;

const EACH = COLS / 256u;
var<workgroup> before: array<f32, 64>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) row: vec3<u32>) {
    let at = (row.x * 64u + lane) * EACH;
    var v: array<vec4<f32>, EACH>;
    var own = 0.0;
    for (var i = 0u; i < EACH; i++) {
        var quad = x[at + i];
        quad.x += own;
        quad.y += quad.x;
        quad.z += quad.y;
        quad.w += quad.z;
        own = quad.w;
        v[i] = quad;
    }
    var sum = own;
    before[lane] = sum;
    for (var step = 1u; step < 64u; step *= 2u) {
        workgroupBarrier();
        if lane >= step {
            sum += before[lane - step];
        }
        workgroupBarrier();
        before[lane] = sum;
    }
    for (var i = 0u; i < EACH; i++) {
        out[at + i] = v[i] + (sum - own);
    }
}
