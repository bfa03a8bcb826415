//! Matrix instructions against plain products. Where each number lies is written here as the PTX manual writes it, element
//! by element ("Matrix Fragments for mma"), and not as the interpreter computes it.

mod common;

use common::apply::Random;
use common::{Arg, Device};
use half::{bf16, f16};

/// The row and the column of element `i` of a lane's fragment.
type Place = fn(lane: usize, i: usize) -> (usize, usize);

/// One shape and type: the layouts of A and B, and how many elements a lane has of each.
struct Shape {
    name: &'static str,
    k: usize,
    a: (usize, Place),
    b: (usize, Place),
    /// The bits of a whole number.
    bits: fn(f32) -> u32,
    /// Elements in a register.
    packed: usize,
    half_sums: bool,
}

/// C and D of all shapes.
fn sums(lane: usize, i: usize) -> (usize, usize) {
    (if i < 2 { lane >> 2 } else { (lane >> 2) + 8 }, (lane % 4) * 2 + (i & 1))
}

fn half_bits(x: f32) -> u32 {
    f16::from_f32(x).to_bits().into()
}

fn brain_bits(x: f32) -> u32 {
    bf16::from_f32(x).to_bits().into()
}

const A_K16: Place = |lane, i| {
    let row = if i < 2 || (4..6).contains(&i) { lane >> 2 } else { (lane >> 2) + 8 };
    (row, (lane % 4) * 2 + (i & 1) + if i < 4 { 0 } else { 8 })
};
const B_K16: Place = |lane, i| ((lane % 4) * 2 + (i & 1) + if i < 2 { 0 } else { 8 }, lane >> 2);
const A_K8: Place = |lane, i| (if i < 2 { lane >> 2 } else { (lane >> 2) + 8 }, (lane % 4) * 2 + (i & 1));
const B_K8: Place = |lane, i| ((lane % 4) * 2 + i, lane >> 2);
const A_TF32: Place = |lane, i| {
    let row = if i == 0 || i == 2 { lane >> 2 } else { (lane >> 2) + 8 };
    (row, lane % 4 + if i < 2 { 0 } else { 4 })
};
const B_TF32: Place = |lane, i| (lane % 4 + if i == 0 { 0 } else { 4 }, lane >> 2);

fn shapes() -> [Shape; 8] {
    let shape = |name, k, a, b, bits, packed, half_sums| Shape { name, k, a, b, bits, packed, half_sums };
    [
        shape("m16n8k16.row.col.f32.f16.f16.f32", 16, (8, A_K16), (4, B_K16), half_bits, 2, false),
        shape("m16n8k16.row.col.f32.bf16.bf16.f32", 16, (8, A_K16), (4, B_K16), brain_bits, 2, false),
        shape("m16n8k16.row.col.f16.f16.f16.f16", 16, (8, A_K16), (4, B_K16), half_bits, 2, true),
        shape("m16n8k8.row.col.f32.f16.f16.f32", 8, (4, A_K8), (2, B_K8), half_bits, 2, false),
        shape("m16n8k8.row.col.f32.bf16.bf16.f32", 8, (4, A_K8), (2, B_K8), brain_bits, 2, false),
        shape("m16n8k8.row.col.f16.f16.f16.f16", 8, (4, A_K8), (2, B_K8), half_bits, 2, true),
        shape("m16n8k8.row.col.f32.tf32.tf32.f32", 8, (4, A_TF32), (2, B_TF32), f32::to_bits, 1, false),
        shape("m16n8k4.row.col.f32.tf32.tf32.f32", 4, (2, A_TF32), (1, B_TF32), f32::to_bits, 1, false),
    ]
}

/// The registers of all lanes: for each lane, one after the other.
fn registers(count: usize, packed: usize, element: impl Fn(usize, usize) -> u32) -> Vec<u32> {
    let one = |lane: usize, register: usize| {
        (0..packed).map(|at| element(lane, register * packed + at) << (16 * at)).fold(0, |all, part| all | part)
    };
    (0..32).flat_map(|lane| (0..count / packed).map(move |register| (lane, register))).map(|(l, r)| one(l, r)).collect()
}

#[test]
fn products() {
    let mut random = Random(5);
    for shape in shapes() {
        let mut number = || (random.next() % 17) as f32 - 8.0;
        let a: Vec<f32> = (0..16 * shape.k).map(|_| number()).collect();
        let b: Vec<f32> = (0..shape.k * 8).map(|_| number()).collect();
        let c: Vec<f32> = (0..16 * 8).map(|_| number()).collect();
        let a_words = registers(shape.a.0, shape.packed, |lane, i| {
            let (row, column) = shape.a.1(lane, i);
            (shape.bits)(a[row * shape.k + column])
        });
        let b_words = registers(shape.b.0, shape.packed, |lane, i| {
            let (row, column) = shape.b.1(lane, i);
            (shape.bits)(b[row * 8 + column])
        });
        let sum_bits = if shape.half_sums { half_bits } else { f32::to_bits };
        let sum_packed = if shape.half_sums { 2 } else { 1 };
        let c_words = registers(4, sum_packed, |lane, i| {
            let (row, column) = sums(lane, i);
            sum_bits(c[row * 8 + column])
        });
        let d_words = multiplied(&shape, &a_words, &b_words, &c_words);
        for lane in 0..32 {
            for i in 0..4 {
                let (row, column) = sums(lane, i);
                let products = (0..shape.k).map(|k| a[row * shape.k + k] * b[k * 8 + column]);
                let expected = sum_bits(c[row * 8 + column] + products.sum::<f32>());
                let word = d_words[lane * 4 / sum_packed + i / sum_packed];
                let found = if shape.half_sums { word >> (16 * (i % 2)) & 0xffff } else { word };
                assert_eq!(found, expected, "{} row {row} column {column}", shape.name);
            }
        }
    }
}

/// Executes the instruction on the registers of all lanes.
fn multiplied(shape: &Shape, a: &[u32], b: &[u32], c: &[u32]) -> Vec<u32> {
    let mut body = String::from("    mov.u32 %r1, %tid.x;\n");
    let mut lists = Vec::new();
    let all = [("a", a.len() / 32), ("b", b.len() / 32), ("c", c.len() / 32)];
    let mut next = 10;
    for (name, count) in all {
        body += &format!("    ld.param.u64 %rd1, [{name}];\n    mad.wide.u32 %rd1, %r1, {}, %rd1;\n", 4 * count);
        let names: Vec<String> = (next..next + count).map(|at| format!("%r{at}")).collect();
        for (at, name) in names.iter().enumerate() {
            body += &format!("    ld.global.b32 {name}, [%rd1+{}];\n", 4 * at);
        }
        lists.push(names.join(", "));
        next += count;
    }
    let sums = c.len() / 32;
    let names: Vec<String> = (0..sums).map(|at| format!("%r{}", 40 + at)).collect();
    body += &format!(
        "    mma.sync.aligned.{} {{{}}}, {{{}}}, {{{}}}, {{{}}};\n",
        shape.name,
        names.join(", "),
        lists[0],
        lists[1],
        lists[2]
    );
    body += &format!("    ld.param.u64 %rd1, [d];\n    mad.wide.u32 %rd1, %r1, {}, %rd1;\n", 4 * sums);
    for (at, name) in names.iter().enumerate() {
        body += &format!("    st.global.b32 [%rd1+{}], {name};\n", 4 * at);
    }
    let device = Device::kernel(&[".u64 a", ".u64 b", ".u64 c", ".u64 d"], &body);
    let d = device.alloc::<u32>(c.len());
    let args = [device.upload(a), device.upload(b), device.upload(c), d].map(Arg::U64);
    device.run("test", 1, 32, &args).unwrap_or_else(|fault| panic!("{}: {fault}", shape.name));
    device.download(d, c.len())
}

/// `ldmatrix`: thread `8 m + r` gives the address of row `r` of matrix `m`; thread `t` gets elements `2 (t % 4)` and the
/// next of row `t / 4`, or of column `t / 4` where the matrix is transposed.
#[test]
fn loads() {
    for count in [1usize, 2, 4] {
        for transposed in [false, true] {
            let names: Vec<String> = (0..count).map(|at| format!("%r{}", 10 + at)).collect();
            let trans = if transposed { ".trans" } else { "" };
            let mut body = String::from(
                "    .shared .align 16 .b8 tile[1024];\n    mov.u32 %r1, %tid.x;\n    ld.param.u64 %rd1, [from];\n    \
                 mad.wide.u32 %rd1, %r1, 32, %rd1;\n    mov.u32 %r2, tile;\n    shl.b32 %r3, %r1, 5;\n    add.u32 %r3, %r2, %r3;\n",
            );
            for half in [0, 16] {
                body += &format!("    ld.global.v4.u32 {{%r4, %r5, %r6, %r7}}, [%rd1+{half}];\n");
                body += &format!("    st.shared.v4.u32 [%r3+{half}], {{%r4, %r5, %r6, %r7}};\n");
            }
            // Lane l gives row 31 - l of the tile of 32 rows of 16 numbers, and its second half where l is odd.
            body += "    bar.sync 0;\n    sub.u32 %r3, 31, %r1;\n    shl.b32 %r3, %r3, 5;\n    and.b32 %r4, %r1, 1;\n    \
                     shl.b32 %r4, %r4, 4;\n    add.u32 %r3, %r3, %r4;\n    add.u32 %r3, %r3, %r2;\n";
            body += &format!(
                "    ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{}}}, [%r3];\n",
                names.join(", ")
            );
            body += &format!("    ld.param.u64 %rd1, [to];\n    mad.wide.u32 %rd1, %r1, {}, %rd1;\n", 4 * count);
            for (at, name) in names.iter().enumerate() {
                body += &format!("    st.global.b32 [%rd1+{}], {name};\n", 4 * at);
            }
            let device = Device::kernel(&[".u64 from", ".u64 to"], &body);
            let tile: Vec<u16> = (0..32 * 16).collect();
            let (from, to) = (device.upload(&tile), device.alloc::<u16>(64 * count));
            device.run("test", 1, 32, &[Arg::U64(from), Arg::U64(to)]).unwrap_or_else(|fault| panic!("{fault}"));
            let found = device.download::<u16>(to, 64 * count);
            for lane in 0..32 {
                for matrix in 0..count {
                    for i in 0..2 {
                        let (row, column) = (lane / 4, 2 * (lane % 4) + i);
                        let (row, column) = if transposed { (column, row) } else { (row, column) };
                        let giver = 8 * matrix + row;
                        let expected = tile[(31 - giver) * 16 + giver % 2 * 8 + column];
                        assert_eq!(found[(lane * count + matrix) * 2 + i], expected, "x{count}{trans} lane {lane}");
                    }
                }
            }
        }
    }
}
