// [rows, 16] x [16, 2]: a row an invocation.
@group(0) @binding(0) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> b: array<vec4<f32>, 8>;
@group(0) @binding(2) var<storage, read_write> out: array<vec2<f32>>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let row = id.x;
    if row >= arrayLength(&out) {
        return;
    }
    var sum = vec2(0.0);
    for (var i = 0u; i < 4u; i++) {
        let x = a[row * 4u + i];
        let first = b[2u * i];
        let second = b[2u * i + 1u];
        sum += x.x * first.xy + x.y * first.zw + x.z * second.xy + x.w * second.zw;
    }
    out[row] = sum;
}
