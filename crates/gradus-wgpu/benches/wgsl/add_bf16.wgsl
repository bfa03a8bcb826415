// a + b in bf16, eight elements an invocation, rounded to nearest, ties to even.
@group(0) @binding(0) var<storage, read> a: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> b: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> out: array<vec4<u32>>;

fn low(x: vec4<u32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(x << vec4(16u));
}

fn high(x: vec4<u32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(x & vec4(0xffff0000u));
}

fn rounded(x: vec4<f32>) -> vec4<u32> {
    let bits = bitcast<vec4<u32>>(x);
    let near = (bits + 0x7fffu + ((bits >> vec4(16u)) & vec4(1u))) >> vec4(16u);
    return select(near, vec4(0x7fc0u), x != x);
}

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    if i < arrayLength(&out) {
        let x = a[i];
        let y = b[i];
        out[i] = rounded(low(x) + low(y)) | (rounded(high(x) + high(y)) << vec4(16u));
    }
}
