// Causal attention of heads of LENGTH positions and 64 numbers, with running maxima and sums. A work-group has 64 queries of
// a head, one an invocation, with its query and result in registers; 32 keys and values at a time lie in workgroup memory.
@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> v: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> out: array<vec4<f32>>;

var<workgroup> keys: array<vec4<f32>, 512>;
var<workgroup> values: array<vec4<f32>, 512>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let head = group.y * LENGTH;
    let at = group.x * 64u + lane;
    var query: array<vec4<f32>, 16>;
    var result: array<vec4<f32>, 16>;
    for (var i = 0u; i < 16u; i++) {
        query[i] = q[(head + at) * 16u + i] * 0.125;
    }
    var most = -3e38;
    var sum = 0.0;
    // Keys after the last query of the work-group are hidden from all of it.
    for (var start = 0u; start < (group.x + 1u) * 64u; start += 32u) {
        workgroupBarrier();
        for (var i = lane; i < 512u; i += 64u) {
            keys[i] = k[(head + start) * 16u + i];
            values[i] = v[(head + start) * 16u + i];
        }
        workgroupBarrier();
        var scores: array<f32, 32>;
        var highest = most;
        for (var j = 0u; j < 32u; j++) {
            var score = vec4(0.0);
            for (var i = 0u; i < 16u; i++) {
                score = fma(query[i], keys[j * 16u + i], score);
            }
            let seen = start + j <= at;
            scores[j] = select(-3e38, score.x + score.y + score.z + score.w, seen);
            highest = max(highest, scores[j]);
        }
        let shrink = exp(most - highest);
        most = highest;
        sum *= shrink;
        for (var i = 0u; i < 16u; i++) {
            result[i] *= shrink;
        }
        for (var j = 0u; j < 32u; j++) {
            let p = exp(scores[j] - most);
            sum += p;
            for (var i = 0u; i < 16u; i++) {
                result[i] = fma(vec4(p), values[j * 16u + i], result[i]);
            }
        }
    }
    for (var i = 0u; i < 16u; i++) {
        out[(head + at) * 16u + i] = result[i] / sum;
    }
}
