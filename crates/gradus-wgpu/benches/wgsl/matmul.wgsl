// The product of square matrices of SIZE by SIZE, a multiple of 64. A work-group computes 64 by 64 elements, 16 steps of
// the inner axis at a time through workgroup memory; an invocation has 8 by 8 of them in registers.
@group(0) @binding(0) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> b: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> out: array<vec4<f32>>;

const WIDTH = SIZE / 4u;
// 16 steps of 64 rows of a, and of 64 columns of b.
var<workgroup> left: array<array<vec4<f32>, 16>, 16>;
var<workgroup> right: array<array<vec4<f32>, 16>, 16>;

@compute @workgroup_size(8, 8)
fn main(
    @builtin(local_invocation_id) local: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) group: vec3<u32>,
) {
    var sum = array<array<vec4<f32>, 2>, 8>();
    for (var k = 0u; k < SIZE; k += 16u) {
        for (var i = lane; i < 256u; i += 64u) {
            let at = i / 4u;
            let quad = i % 4u;
            let v = a[(group.y * 64u + at) * WIDTH + k / 4u + quad];
            for (var j = 0u; j < 4u; j++) {
                left[quad * 4u + j][at / 4u][at % 4u] = v[j];
            }
            right[i / 16u][i % 16u] = b[(k + i / 16u) * WIDTH + group.x * 16u + i % 16u];
        }
        workgroupBarrier();
        for (var i = 0u; i < 16u; i++) {
            let x0 = left[i][local.y * 2u];
            let x1 = left[i][local.y * 2u + 1u];
            let y0 = right[i][local.x * 2u];
            let y1 = right[i][local.x * 2u + 1u];
            sum[0][0] = fma(vec4(x0.x), y0, sum[0][0]);
            sum[0][1] = fma(vec4(x0.x), y1, sum[0][1]);
            sum[1][0] = fma(vec4(x0.y), y0, sum[1][0]);
            sum[1][1] = fma(vec4(x0.y), y1, sum[1][1]);
            sum[2][0] = fma(vec4(x0.z), y0, sum[2][0]);
            sum[2][1] = fma(vec4(x0.z), y1, sum[2][1]);
            sum[3][0] = fma(vec4(x0.w), y0, sum[3][0]);
            sum[3][1] = fma(vec4(x0.w), y1, sum[3][1]);
            sum[4][0] = fma(vec4(x1.x), y0, sum[4][0]);
            sum[4][1] = fma(vec4(x1.x), y1, sum[4][1]);
            sum[5][0] = fma(vec4(x1.y), y0, sum[5][0]);
            sum[5][1] = fma(vec4(x1.y), y1, sum[5][1]);
            sum[6][0] = fma(vec4(x1.z), y0, sum[6][0]);
            sum[6][1] = fma(vec4(x1.z), y1, sum[6][1]);
            sum[7][0] = fma(vec4(x1.w), y0, sum[7][0]);
            sum[7][1] = fma(vec4(x1.w), y1, sum[7][1]);
        }
        workgroupBarrier();
    }
    for (var i = 0u; i < 8u; i++) {
        let at = (group.y * 64u + local.y * 8u + i) * WIDTH + group.x * 16u + local.x * 2u;
        out[at] = sum[i][0];
        out[at + 1u] = sum[i][1];
    }
}
