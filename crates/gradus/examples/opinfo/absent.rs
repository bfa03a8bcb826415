//! Entries of the database that have no counterpart in Gradus, grouped by reason.

/// Pairs of a reason and the names of its entries, separated by spaces.
pub(crate) const ABSENT: &[(&str, &str)] = &[
    (
        "complex numbers: Gradus has real ones",
        "angle cdouble cfloat chalf complex conj conj_physical imag isreal polar positive real resolve_conj resolve_neg \
         view_as_complex view_as_real nn.functional.silu/complex stft istft fft.fft fft.fft2 fft.fftn fft.hfft fft.hfft2 \
         fft.hfftn fft.rfft fft.rfft2 fft.rfftn fft.ifft fft.ifft2 fft.ifftn fft.ihfft fft.ihfft2 fft.ihfftn fft.irfft \
         fft.irfft2 fft.irfftn fft.fftshift fft.ifftshift",
    ),
    (
        "decompositions, solvers and matrix functions: not in the contract",
        "cholesky_inverse cholesky_solve geqrf lu lu_solve lu_unpack logdet matrix_exp norm/nuc ormqr pca_lowrank pinverse \
         svd svd_lowrank triangular_solve linalg.cholesky linalg.cholesky_ex linalg.cond linalg.det linalg.eig linalg.eigh \
         linalg.eigvals linalg.eigvalsh linalg.householder_product linalg.inv linalg.inv_ex linalg.ldl_factor \
         linalg.ldl_factor_ex linalg.ldl_solve linalg.lstsq linalg.lstsq/grad_oriented linalg.lu linalg.lu_factor \
         linalg.lu_factor_ex linalg.lu_solve linalg.matrix_norm linalg.matrix_power linalg.matrix_rank \
         linalg.matrix_rank/hermitian linalg.matrix_sqrth linalg.norm linalg.norm/subgradients_at_zero linalg.pinv \
         linalg.pinv/hermitian linalg.pinv/singular linalg.polar linalg.qr linalg.slogdet linalg.solve linalg.solve_ex \
         linalg.solve_triangular linalg.svd linalg.svdvals linalg.tensorinv linalg.tensorsolve",
    ),
    ("sparse tensors: not in the contract", "sparse.mm/reduce sparse.sampled_addmm to_sparse"),
    (
        "special functions: not in the contract",
        "digamma erfinv i0 igamma igammac lgamma logit mvlgamma/mvlgamma_p_1 mvlgamma/mvlgamma_p_3 mvlgamma/mvlgamma_p_5 \
         polygamma/polygamma_n_0 polygamma/polygamma_n_1 polygamma/polygamma_n_2 polygamma/polygamma_n_3 \
         polygamma/polygamma_n_4 sinc special.airy_ai special.bessel_j0 special.bessel_j1 special.bessel_y0 \
         special.bessel_y1 special.chebyshev_polynomial_t special.chebyshev_polynomial_u special.chebyshev_polynomial_v \
         special.chebyshev_polynomial_w special.entr special.erfcx special.hermite_polynomial_h \
         special.hermite_polynomial_he special.i0e special.i1 special.i1e special.laguerre_polynomial_l \
         special.legendre_polynomial_p special.log_ndtr special.modified_bessel_i0 special.modified_bessel_i1 \
         special.modified_bessel_k0 special.modified_bessel_k1 special.ndtri special.polygamma/special_polygamma_n_0 \
         special.scaled_modified_bessel_k0 special.scaled_modified_bessel_k1 special.shifted_chebyshev_polynomial_t \
         special.shifted_chebyshev_polynomial_u special.shifted_chebyshev_polynomial_v \
         special.shifted_chebyshev_polynomial_w special.spherical_bessel_j0 special.xlog1py special.zeta",
    ),
    (
        "bits and divisors of integers: not in the contract",
        "bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor gcd lcm __rand__ __ror__ \
         __rxor__",
    ),
    (
        "memory, strides and storage as a caller sets them: Gradus shows neither bytes that nothing wrote nor a way to alias",
        "as_strided as_strided/partial_views as_strided_copy as_strided_scatter empty empty_like empty_permuted \
         empty_strided new_empty new_empty_strided resize_ resize_as_",
    ),
    (
        "PyTorch's internals: halves of operations whose whole is compared, and what it compiles at run time",
        "_batch_norm_with_update _chunk_cat _native_batch_norm_legit _segment_reduce/lengths _segment_reduce/offsets \
         _softmax_backward_data _unsafe_masked_index _unsafe_masked_index_put_accumulate hash_tensor jiterator_2inputs_2outputs \
         jiterator_4inputs_with_extra_args jiterator_binary jiterator_binary_return_by_ref jiterator_unary \
         max_pool2d_with_indices_backward native_batch_norm native_dropout_backward native_group_norm native_layer_norm \
         sum_to_size torch._scaled_mm torch._scaled_mm_v2 torch.ops.aten._efficient_attention_forward \
         torch.ops.aten._flash_attention_forward torch.ops.aten._scaled_dot_product_flash_attention_for_cpu",
    ),
    (
        "`torch.masked`, a prototype: `where_` before the operation is the same",
        "masked.amax masked.amin masked.argmax masked.argmin masked.cumprod masked.cumsum masked.log_softmax \
         masked.logaddexp masked.logsumexp masked.mean masked.median masked.norm masked.normalize masked.prod masked.softmin \
         masked.std masked.sum masked.var",
    ),
    (
        "layers and losses that are not in the contract",
        "grid_sampler_3d nn.functional.bilinear nn.functional.channel_shuffle nn.functional.embedding_bag \
         nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d nn.functional.linear_cross_entropy/chunked \
         nn.functional.linear_cross_entropy/chunked_none nn.functional.max_unpool1d nn.functional.max_unpool1d/grad \
         nn.functional.max_unpool2d nn.functional.max_unpool2d/grad nn.functional.max_unpool3d \
         nn.functional.max_unpool3d/grad nn.functional.multi_head_attention_forward nn.functional.multi_margin_loss \
         nn.functional.multilabel_margin_loss nn.functional.multilabel_soft_margin_loss nn.functional.pdist \
         nn.functional.pixel_shuffle nn.functional.pixel_unshuffle nn.functional.rrelu \
         nn.functional.triplet_margin_with_distance_loss nn.functional.alpha_dropout nn.functional.dropout2d \
         nn.functional.dropout3d nn.functional.feature_alpha_dropout/with_train \
         nn.functional.feature_alpha_dropout/without_train",
    ),
    (
        "conveniences that are not in the contract: a line or two of other operations, or of Rust",
        "allclose atleast_1d atleast_2d atleast_3d block_diag broadcast_shapes column_stack combinations corrcoef cov \
         cumulative_trapezoid diagonal_scatter diff dsplit dstack equal frexp gradient heaviside histc histogram histogramdd \
         hsplit hstack isclose isin ldexp linalg.vander linspace/tensor_overload logaddexp2 logspace logspace/tensor_overload \
         masked_scatter median mode nanmean nanmedian nanquantile nansum nextafter nonzero_static quantile renorm \
         tensor_split trapezoid trapz tril_indices triu_indices unique_consecutive unravel_index vsplit vstack \
         signal.windows.bartlett signal.windows.blackman signal.windows.cosine signal.windows.exponential \
         signal.windows.gaussian signal.windows.general_cosine signal.windows.general_hamming signal.windows.hamming \
         signal.windows.hann signal.windows.kaiser signal.windows.nuttall",
    ),
    (
        "random numbers whose distribution is not in the contract",
        "cauchy geometric log_normal normal normal/number_mean",
    ),
    ("PyTorch has no samples of it on the CPU", "nn.functional.batch_norm/without_cudnn"),
];
