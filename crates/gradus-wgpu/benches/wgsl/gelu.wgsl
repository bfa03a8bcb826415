// The exact GELU, four elements an invocation.
@group(0) @binding(0) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> out: array<vec4<f32>>;

// erf by formula 7.1.26 of Abramowitz and Stegun, whose error is below 1.5e-7.
fn gelu(x: vec4<f32>) -> vec4<f32> {
    let z = abs(x) * 0.70710678;
    let t = 1.0 / (1.0 + 0.3275911 * z);
    let p = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
    let erf = sign(x) * (1.0 - p * exp(-z * z));
    return 0.5 * x * (1.0 + erf);
}

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    if i < arrayLength(&out) {
        out[i] = gelu(a[i]);
    }
}
