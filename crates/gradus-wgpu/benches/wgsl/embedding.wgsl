// Rows of 64 elements by 64-bit indices, of which the upper halves are 0: four elements an invocation.
@group(0) @binding(0) var<storage, read> weight: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> index: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read_write> out: array<vec4<f32>>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    if i < arrayLength(&out) {
        out[i] = weight[index[i / 16u].x * 16u + i % 16u];
    }
}
