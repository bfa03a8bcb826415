//! Convolution, pooling, normalisation, softmax and attention.

use gradus::ops::{
    GridPadding, GridSample, Interpolate, Interpolation, RecurrentCell, RecurrentOptions, Resized, Sampling,
};
use gradus::prelude::*;

use crate::{Cases, one, pair};

pub(crate) const CASES: Cases = &[
    ("conv2d", one!(|x| x[0].conv2d(&x[1], Some(&x[2]), ConvOptions::new()))),
    (
        "conv2d/stride_padding",
        one!(|x| x[0].conv2d(&x[1], Some(&x[2]), ConvOptions::new().stride([2, 1]).padding([1, 2]))),
    ),
    ("conv2d/dilation", one!(|x| x[0].conv2d(&x[1], None, ConvOptions::new().padding([2, 2]).dilation([2, 3])))),
    ("conv2d/groups", one!(|x| x[0].conv2d(&x[1], Some(&x[2]), ConvOptions::new().groups(2)))),
    ("conv2d/depthwise", one!(|x| x[0].conv2d(&x[1], None, ConvOptions::new().padding([1, 1]).groups(3)))),
    ("max_pool2d", one!(|x| x[0].max_pool2d([2, 2], PoolOptions::new().stride([2, 2])))),
    ("max_pool2d/overlap", one!(|x| x[0].max_pool2d([3, 3], PoolOptions::new().stride([2, 2]).padding([1, 1])))),
    ("avg_pool2d", one!(|x| x[0].avg_pool2d([2, 2], PoolOptions::new().stride([2, 2]), true))),
    ("avg_pool2d/padding", one!(|x| x[0].avg_pool2d([3, 3], PoolOptions::new().stride([2, 2]).padding([1, 1]), true))),
    ("avg_pool2d/exclude", one!(|x| x[0].avg_pool2d([3, 3], PoolOptions::new().stride([2, 2]).padding([1, 1]), false))),
    ("softmax", one!(|x| x[0].softmax(1))),
    ("softmax/scalar", one!(|x| x[0].softmax(-1))),
    ("log_softmax", one!(|x| x[0].log_softmax(-1))),
    ("layer_norm", one!(|x| x[0].layer_norm(&[4, 5], x.get(1), x.get(2), 1e-5))),
    ("layer_norm/plain", one!(|x| x[0].layer_norm(&[5], None, None, 1e-3))),
    ("batch_norm/train", |x| Ok(vec![x[0].batch_norm(x.get(1), x.get(2), 1e-5)?.0])),
    ("batch_norm_eval", one!(|x| x[0].batch_norm_eval(&x[3], &x[4], x.get(1), x.get(2), 1e-5))),
    ("embedding", one!(|x| x[1].embedding(&x[0], None))),
    ("embedding/padding", one!(|x| x[1].embedding(&x[0], Some(2)))),
    ("conv1d", one!(|x| x[0].conv1d(&x[1], Some(&x[2]), ConvOptions::new().stride([2]).padding([1])))),
    ("conv3d", one!(|x| x[0].conv3d(&x[1], Some(&x[2]), ConvOptions::new().padding([1, 0, 1])))),
    (
        "conv_transpose1d",
        one!(|x| {
            x[0].conv_transpose1d(&x[1], Some(&x[2]), ConvOptions::new().stride([2]).padding([1]).output_padding([1]))
        }),
    ),
    (
        "conv_transpose2d",
        one!(|x| { x[0].conv_transpose2d(&x[1], Some(&x[2]), ConvOptions::new().stride([2, 1]).groups(2)) }),
    ),
    (
        "conv_transpose2d/dilation",
        one!(|x| { x[0].conv_transpose2d(&x[1], None, ConvOptions::new().dilation([2, 3]).padding([1, 1])) }),
    ),
    ("conv_transpose3d", one!(|x| x[0].conv_transpose3d(&x[1], None, ConvOptions::new()))),
    ("unfold", one!(|x| x[0].unfold([3, 2], ConvOptions::new().padding([1, 1]).stride([2, 2])))),
    ("fold", one!(|x| x[0].fold([5, 6], [3, 2], ConvOptions::new().padding([1, 1]).stride([2, 2])))),
    ("max_pool1d", one!(|x| x[0].max_pool1d([3], PoolOptions::new().stride([2]).padding([1])))),
    ("max_pool3d", one!(|x| x[0].max_pool3d([2, 2, 2], PoolOptions::new()))),
    ("avg_pool1d", one!(|x| x[0].avg_pool1d([3], PoolOptions::new().stride([2]).padding([1]), true))),
    ("avg_pool3d", one!(|x| x[0].avg_pool3d([2, 2, 2], PoolOptions::new(), true))),
    ("max_pool2d_with_indices", |x| {
        x[0].max_pool2d_with_indices([3, 3], PoolOptions::new().stride([2, 2]).padding([1, 1])).map(pair)
    }),
    ("max_pool1d_with_indices", |x| {
        x[0].max_pool1d_with_indices([3], PoolOptions::new().stride([2]).padding([1])).map(pair)
    }),
    ("max_pool3d_with_indices", |x| x[0].max_pool3d_with_indices([2, 2, 2], PoolOptions::new()).map(pair)),
    ("adaptive_max_pool1d_with_indices", |x| x[0].adaptive_max_pool1d_with_indices([4]).map(pair)),
    ("adaptive_max_pool2d_with_indices", |x| x[0].adaptive_max_pool2d_with_indices([3, 4]).map(pair)),
    ("adaptive_max_pool3d_with_indices", |x| x[0].adaptive_max_pool3d_with_indices([2, 3, 4]).map(pair)),
    ("max_pool2d/ceil", one!(|x| x[0].max_pool2d([3, 3], PoolOptions::new().stride([2, 2]).ceil_mode(true)))),
    ("max_pool2d/dilation", one!(|x| x[0].max_pool2d([2, 2], PoolOptions::new().dilation([2, 2])))),
    (
        "avg_pool2d/ceil",
        one!(|x| { x[0].avg_pool2d([3, 3], PoolOptions::new().stride([2, 2]).padding([1, 1]).ceil_mode(true), true) }),
    ),
    ("adaptive_avg_pool1d", one!(|x| x[0].adaptive_avg_pool1d([4]))),
    ("adaptive_avg_pool2d", one!(|x| x[0].adaptive_avg_pool2d([3, 4]))),
    ("adaptive_avg_pool3d", one!(|x| x[0].adaptive_avg_pool3d([2, 3, 4]))),
    ("adaptive_max_pool1d", one!(|x| x[0].adaptive_max_pool1d([4]))),
    ("adaptive_max_pool2d", one!(|x| x[0].adaptive_max_pool2d([3, 4]))),
    ("adaptive_max_pool3d", one!(|x| x[0].adaptive_max_pool3d([2, 3, 4]))),
    ("group_norm", one!(|x| x[0].group_norm(2, x.get(1), x.get(2), 1e-5))),
    ("instance_norm", one!(|x| x[0].instance_norm(None, None, 1e-5))),
    ("rms_norm", one!(|x| x[0].rms_norm(&[5], x.get(1), 1e-6))),
    ("normalize", one!(|x| x[0].normalize(2.0, 1, 1e-12))),
    ("normalize/negative", one!(|x| x[0].normalize(-2.0, 1, 1e-12))),
    ("normalize/zero", one!(|x| x[0].normalize(0.0, 1, 1e-12))),
    ("local_response_norm", one!(|x| x[0].local_response_norm(3, 1e-1, 0.75, 2.0))),
    ("scaled_dot_product_attention", one!(|x| attention(x, AttentionOptions::new()))),
    ("scaled_dot_product_attention/scale", one!(|x| attention(x, AttentionOptions::new().scale(0.7)))),
    ("scaled_dot_product_attention/mask", one!(|x| attention(x, AttentionOptions::new().mask(&x[3])))),
    ("scaled_dot_product_attention/bias", one!(|x| attention(x, AttentionOptions::new().mask(&x[3])))),
    ("scaled_dot_product_attention/causal", one!(|x| attention(x, AttentionOptions::new().causal(Causal::TopLeft)))),
    ("attention_with_lse", |x| x[0].attention_with_lse(&x[1], &x[2], AttentionOptions::new()).map(pair)),
    ("masked_softmax", one!(|x| x[0].masked_softmax(&x[1], 1))),
    ("affine_grid", one!(|x| x[0].affine_grid(3, 4, false))),
    ("interpolate/nearest", one!(|x| x[0].interpolate(Resized::To(&[6, 3]), Interpolation::Nearest))),
    ("interpolate/nearest-exact", one!(|x| x[0].interpolate(Resized::To(&[6, 3]), Interpolation::NearestExact))),
    ("interpolate/bilinear", one!(|x| x[0].interpolate(Resized::To(&[6, 3]), Interpolation::Bilinear))),
    ("interpolate/bicubic", one!(|x| x[0].interpolate(Resized::To(&[6, 3]), Interpolation::Bicubic))),
    (
        "interpolate/align_corners",
        one!(|x| {
            x[0].interpolate(Resized::To(&[6, 3]), Interpolate::from(Interpolation::Bilinear).align_corners())
        }),
    ),
    (
        "interpolate/antialias",
        one!(|x| { x[0].interpolate(Resized::To(&[2, 3]), Interpolate::from(Interpolation::Bilinear).antialias()) }),
    ),
    (
        "interpolate/antialias_bicubic",
        one!(|x| { x[0].interpolate(Resized::To(&[2, 3]), Interpolate::from(Interpolation::Bicubic).antialias()) }),
    ),
    ("interpolate/linear", one!(|x| x[0].interpolate(Resized::To(&[8]), Interpolation::Linear))),
    ("interpolate/trilinear", one!(|x| x[0].interpolate(Resized::To(&[3, 2, 4]), Interpolation::Trilinear))),
    ("recurrent/rnn_tanh", |x| recurrent(x, RecurrentOptions::new(RecurrentCell::RnnTanh))),
    ("recurrent/rnn_relu", |x| recurrent(x, RecurrentOptions::new(RecurrentCell::RnnRelu))),
    ("recurrent/lstm", |x| recurrent(x, RecurrentOptions::new(RecurrentCell::Lstm))),
    ("recurrent/lstm_reverse", |x| recurrent(x, RecurrentOptions::new(RecurrentCell::Lstm).reverse(true))),
    ("recurrent/gru", |x| recurrent(x, RecurrentOptions::new(RecurrentCell::Gru))),
    ("recurrent/gru_lengths", |x| recurrent(x, RecurrentOptions::new(RecurrentCell::Gru).lengths(&[4, 2]))),
    ("grid_sample/bilinear_zeros", one!(|x| sampled(x, Sampling::Bilinear, GridPadding::Zeros))),
    ("grid_sample/bilinear_border", one!(|x| sampled(x, Sampling::Bilinear, GridPadding::Border))),
    ("grid_sample/bilinear_reflection", one!(|x| sampled(x, Sampling::Bilinear, GridPadding::Reflection))),
    ("grid_sample/nearest_zeros", one!(|x| sampled(x, Sampling::Nearest, GridPadding::Zeros))),
    ("grid_sample/nearest_border", one!(|x| sampled(x, Sampling::Nearest, GridPadding::Border))),
    ("grid_sample/nearest_reflection", one!(|x| sampled(x, Sampling::Nearest, GridPadding::Reflection))),
    ("grid_sample/bicubic_zeros", one!(|x| sampled(x, Sampling::Bicubic, GridPadding::Zeros))),
    ("grid_sample/bicubic_border", one!(|x| sampled(x, Sampling::Bicubic, GridPadding::Border))),
    ("grid_sample/bicubic_reflection", one!(|x| sampled(x, Sampling::Bicubic, GridPadding::Reflection))),
];

fn sampled(x: &[Tensor], mode: Sampling, padding: GridPadding) -> Result<Tensor> {
    x[0].grid_sample(&x[1], GridSample { mode, padding, align_corners: false })
}

fn recurrent(x: &[Tensor], options: RecurrentOptions<'_>) -> Result<Vec<Tensor>> {
    let [input, states @ .., w_ih, w_hh, b_ih, b_hh] = x else { return Ok(vec![]) };
    input.recurrent(options, &states.iter().collect::<Vec<_>>(), [w_ih, w_hh], Some([b_ih, b_hh]))
}

fn attention(x: &[Tensor], options: AttentionOptions<'_>) -> Result<Tensor> {
    x[0].scaled_dot_product_attention(&x[1], &x[2], options)
}
