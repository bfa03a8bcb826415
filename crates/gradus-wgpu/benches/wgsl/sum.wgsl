// One sum a work-group: each invocation adds every so many vectors, then a tree adds the invocations. Run once with many
// work-groups, and once more with one on their sums.
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

var<workgroup> part: array<f32, 64>;

@compute @workgroup_size(64)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    var sum = vec4(0.0);
    for (var i = group.x * 64u + lane; i < arrayLength(&x); i += groups.x * 64u) {
        sum += x[i];
    }
    part[lane] = sum.x + sum.y + sum.z + sum.w;
    for (var half = 32u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if lane < half {
            part[lane] += part[lane + half];
        }
    }
    if lane == 0u {
        out[group.x] = part[0];
    }
}
