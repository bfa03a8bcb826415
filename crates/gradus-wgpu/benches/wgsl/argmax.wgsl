// The place of the largest element of each row of COLS elements, a multiple of 256, the first of several, as an integer of
// 64 bits: one work-group a row, then a tree.
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> out: array<vec2<u32>>;

const QUADS = COLS / 4u;
var<workgroup> value: array<f32, 64>;
var<workgroup> place: array<u32, 64>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) row: vec3<u32>) {
    // Four candidates, one for each component.
    var best = x[row.x * QUADS + lane];
    var quad = vec4(lane);
    for (var i = lane + 64u; i < QUADS; i += 64u) {
        let v = x[row.x * QUADS + i];
        quad = select(quad, vec4(i), v > best);
        best = max(best, v);
    }
    let places = quad * 4u + vec4(0u, 1u, 2u, 3u);
    var most = best.x;
    var at = places.x;
    for (var i = 1u; i < 4u; i++) {
        if best[i] > most || (best[i] == most && places[i] < at) {
            most = best[i];
            at = places[i];
        }
    }
    value[lane] = most;
    place[lane] = at;
    for (var half = 32u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if lane < half {
            let other = value[lane + half];
            let there = place[lane + half];
            if other > value[lane] || (other == value[lane] && there < place[lane]) {
                value[lane] = other;
                place[lane] = there;
            }
        }
    }
    if lane == 0u {
        out[row.x] = vec2(place[0], 0u);
    }
}
