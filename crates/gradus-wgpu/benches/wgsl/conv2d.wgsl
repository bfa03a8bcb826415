// A convolution of CHANNELS channels of SIDE by SIDE by 64 filters of 3 by 3, stride 1, padding 1, as the product of the
// filters with the unfolded input, which is never stored: 64 filters by 64 positions a work-group, 16 steps of channel and
// place in the window at a time through workgroup memory, 8 by 8 of them in the registers of an invocation.
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> out: array<vec4<f32>>;

const AREA = SIDE * SIDE;
const DEPTH = CHANNELS * 9u;
// 16 steps of 64 filters, and of 64 positions.
var<workgroup> left: array<array<vec4<f32>, 16>, 16>;
var<workgroup> right: array<array<vec4<f32>, 16>, 16>;

@compute @workgroup_size(8, 8)
fn main(
    @builtin(local_invocation_id) local: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) group: vec3<u32>,
) {
    // The position whose inputs this invocation loads.
    let position = group.x * 64u + lane;
    let image = position / AREA * CHANNELS * AREA;
    let row = i32(position % AREA / SIDE) - 1;
    let place = i32(position % SIDE) - 1;
    var sum = array<array<vec4<f32>, 2>, 8>();
    for (var k = 0u; k < DEPTH; k += 16u) {
        for (var i = lane; i < 256u; i += 64u) {
            let number = i / 4u;
            let quad = i % 4u;
            let v = w[(number * DEPTH + k) / 4u + quad];
            for (var j = 0u; j < 4u; j++) {
                left[quad * 4u + j][number / 4u][number % 4u] = v[j];
            }
        }
        for (var i = 0u; i < 16u; i++) {
            let tap = (k + i) % 9u;
            let r = row + i32(tap / 3u);
            let c = place + i32(tap % 3u);
            var value = 0.0;
            if r >= 0 && r < i32(SIDE) && c >= 0 && c < i32(SIDE) {
                value = x[image + (k + i) / 9u * AREA + u32(r) * SIDE + u32(c)];
            }
            right[i][lane / 4u][lane % 4u] = value;
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
    // Four neighbouring positions lie in one image, as its area is a multiple of 4.
    for (var j = 0u; j < 2u; j++) {
        let first = group.x * 64u + (local.x * 2u + j) * 4u;
        for (var i = 0u; i < 8u; i++) {
            let channel = first / AREA * 64u + local.y * 8u + i;
            out[(channel * AREA + first % AREA) / 4u] = sum[i][j];
        }
    }
}
