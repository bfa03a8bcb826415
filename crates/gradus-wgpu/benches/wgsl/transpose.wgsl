// The transpose of a square matrix of SIZE by SIZE, in tiles of 32 by 32. An invocation turns 4 by 4 elements around in
// registers; the blocks change places in workgroup memory, so that neighbours write neighbouring elements.
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> out: array<vec4<f32>>;

const QUADS = SIZE / 4u;
var<workgroup> tile: array<mat4x4<f32>, 64>;

@compute @workgroup_size(8, 8)
fn main(@builtin(local_invocation_id) local: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    let source = (group.y * 32u + local.y * 4u) * QUADS + group.x * 8u + local.x;
    let block = mat4x4(x[source], x[source + QUADS], x[source + 2u * QUADS], x[source + 3u * QUADS]);
    tile[local.y * 8u + local.x] = transpose(block);
    workgroupBarrier();
    let turned = tile[local.x * 8u + local.y];
    let to = (group.x * 32u + local.y * 4u) * QUADS + group.y * 8u + local.x;
    out[to] = turned[0];
    out[to + QUADS] = turned[1];
    out[to + 2u * QUADS] = turned[2];
    out[to + 3u * QUADS] = turned[3];
}
