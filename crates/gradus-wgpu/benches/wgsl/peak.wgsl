// Eight chains of multiply-adds an invocation, none of which waits for another: what the device computes where nothing
// but arithmetic takes time.
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let factor = vec4(x[id.x]);
    let term = vec4(x[id.x] * 0.5);
    var a = vec4(0.0, 1.0, 2.0, 3.0) + factor;
    var b = vec4(4.0, 5.0, 6.0, 7.0) + factor;
    for (var i = 0u; i < STEPS; i += 8u) {
        a = fma(a, factor, term);
        b = fma(b, factor, term);
        a = fma(a, factor, term);
        b = fma(b, factor, term);
        a = fma(a, factor, term);
        b = fma(b, factor, term);
        a = fma(a, factor, term);
        b = fma(b, factor, term);
        a = fma(a, factor, term);
        b = fma(b, factor, term);
        a = fma(a, factor, term);
        b = fma(b, factor, term);
        a = fma(a, factor, term);
        b = fma(b, factor, term);
        a = fma(a, factor, term);
        b = fma(b, factor, term);
    }
    out[id.x] = a.x + a.y + a.z + a.w + b.x + b.y + b.z + b.w;
}
