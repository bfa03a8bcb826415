//! Sequence layers: what decoding with a cache, shared key heads, dropout and low-rank updates do, and refusals.
#![allow(clippy::unwrap_used)]

mod common;

use common::{device, values, with_init};
use gradus_nn::*;
use gradus_tensor::{Causal, DType, Device, Error, ErrorKind, Result, Tensor, no_grad};

fn numbers(t: &Tensor) -> Vec<f64> {
    t.detach().to_vec().unwrap()
}

#[track_caller]
fn close(a: &Tensor, b: &Tensor) {
    common::assert_close(a, &numbers(b));
}

/// An attention layer of 4 heads of size 2, with two key heads and rotary positions.
fn grouped(d: &Device) -> MultiheadAttention {
    let config = MultiheadAttentionConfig { num_kv_heads: Some(2), ..Default::default() };
    let layer = with_init(d, |init| MultiheadAttention::new(8, 4, config, init).unwrap());
    layer.with_rotary(RotaryEmbedding::new(2, 100.0).unwrap())
}

#[test]
fn decoding_in_parts_equals_the_whole() {
    let d = device();
    let layer = grouped(&d);
    let x = values(&[2, 7, 8], &d);
    let all = layer.attend(&x, &x, &x, None, Causal::BottomRight).unwrap();
    let mut cache = KvCache::new();
    for round in 0..2 {
        let mut first = 0;
        for part in [3, 1, 1, 2] {
            let y = no_grad(|| layer.decode(&x.narrow(1, first, part)?, &mut cache, Masks::default())).unwrap();
            close(&y, &all.narrow(1, first, part).unwrap());
            first += part;
            assert_eq!(cache.len(), first);
        }
        // Going back to the third token, and then on with the same ones.
        cache.truncate(3).unwrap();
        let y = no_grad(|| layer.decode(&x.narrow(1, 3, 4)?, &mut cache, Masks::default())).unwrap();
        close(&y, &all.narrow(1, 3, 4).unwrap());
        cache.reset();
        assert!(cache.is_empty(), "round {round}");
    }
    // Another batch fits after the reset.
    let one = x.narrow(0, 1, 1).unwrap();
    let y = no_grad(|| layer.decode(&one, &mut cache, Masks::default())).unwrap();
    close(&y, &all.narrow(0, 1, 1).unwrap());
}

#[test]
fn a_failed_step_leaves_the_cache_as_it_was() {
    let d = device();
    let layer = grouped(&d);
    let x = values(&[2, 5, 8], &d);
    let mut cache = KvCache::new();
    let step = |layer: &MultiheadAttention, x: &Tensor, masks: Masks<'_>, cache: &mut KvCache| {
        no_grad(|| layer.decode(x, cache, masks))
    };
    let _ = step(&layer, &x.narrow(1, 0, 2).unwrap(), Masks::default(), &mut cache).unwrap();
    let wrong = Tensor::ones([9], DType::F64, &d).unwrap();
    let masks = Masks { mask: Some(&wrong), ..Default::default() };
    assert!(step(&layer, &x.narrow(1, 2, 1).unwrap(), masks, &mut cache).is_err());
    let e = step(&layer, &x.narrow(0, 0, 1).unwrap(), Masks::default(), &mut cache).unwrap_err();
    assert!(e.to_string().contains("tokens of another batch"), "{e}");
    let e = layer.decode(&x, &mut cache, Masks::default()).unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::Autograd) && e.to_string().contains("no_grad"), "{e}");
    assert!(cache.truncate(3).is_err());
    assert_eq!(cache.len(), 2);
    let y = step(&layer, &x.narrow(1, 2, 3).unwrap(), Masks::default(), &mut cache).unwrap();
    let all = layer.attend(&x, &x, &x, None, Causal::BottomRight).unwrap();
    close(&y, &all.narrow(1, 2, 3).unwrap());

    let config = MultiheadAttentionConfig { add_zero_attn: true, ..Default::default() };
    let adds = with_init(&d, |init| MultiheadAttention::new(8, 4, config, init).unwrap());
    let e = step(&adds, &x, Masks::default(), &mut KvCache::new()).unwrap_err();
    assert!(e.to_string().contains("does not decode"), "{e}");
}

#[test]
fn a_key_head_serves_several_query_heads() {
    let d = device();
    let mut grouped = grouped(&d);
    let config = MultiheadAttentionConfig { kdim: Some(8), vdim: Some(8), ..Default::default() };
    let mut full = with_init(&d, |init| MultiheadAttention::new(8, 4, config, init).unwrap())
        .with_rotary(RotaryEmbedding::new(2, 100.0).unwrap());
    let state = grouped.state_dict().unwrap();
    let shapes: Vec<&[usize]> = ["q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias"]
        .map(|n| state.get(n).unwrap().shape())
        .into();
    assert_eq!(shapes, [&[8, 8][..], &[4, 8], &[4, 8], &[16]]);
    // The layer with as many key heads has each of the two twice.
    let twice = |t: &Tensor| -> Result<Tensor> {
        let (a, b) = (t.narrow(0, 0, 2)?, t.narrow(0, 2, 2)?);
        Tensor::cat(&[&a, &a, &b, &b], 0)
    };
    let weight = |name: &str| twice(state.get(name).unwrap()).unwrap();
    full.k_proj_weight = Some(Parameter::new(weight("k_proj_weight")).unwrap());
    full.v_proj_weight = Some(Parameter::new(weight("v_proj_weight")).unwrap());
    full.q_proj_weight = grouped.q_proj_weight.clone();
    full.out_proj = grouped.out_proj.clone();
    let x = values(&[2, 3, 8], &d);
    let masks = Masks::causal(Causal::TopLeft);
    let (y, weights) = full.attend_with_weights(&x, &x, &x, masks).unwrap();
    close(&grouped.attend_with(&x, &x, &x, masks).unwrap(), &y);
    let (z, shared) = grouped.attend_with_weights(&x, &x, &x, masks).unwrap();
    close(&z, &y);
    close(&shared, &weights);
    grouped.eval();
}

#[test]
fn recurrent_layers_drop_features_between_them_while_they_train() {
    let d = device();
    let config = RecurrentConfig { num_layers: 2, dropout: 0.5, ..Default::default() };
    let mut layer = with_init(&d, |init| Lstm::new(3, 4, config, init).unwrap());
    let x = values(&[5, 2, 3], &d);
    let run = |layer: &Lstm| numbers(&layer.forward(&x).unwrap());
    let state = layer.named_random_states()[0].1.clone();
    let saved = state.get();
    let first = run(&layer);
    assert_ne!(first, run(&layer));
    state.set(saved.clone());
    assert_eq!(first, run(&layer));
    // A pass that fails draws nothing.
    state.set(saved.clone());
    let wrong = values(&[2, 2, 5], &d);
    assert!(layer.run(&x, None, Some([&wrong, &wrong])).is_err());
    assert_eq!(first, run(&layer));
    layer.eval();
    assert_eq!(run(&layer), run(&layer));
    assert_ne!(first, run(&layer));

    // One layer has nothing between layers.
    let config = RecurrentConfig { num_layers: 1, ..config };
    let one = with_init(&d, |init| Gru::new(3, 4, config, init).unwrap());
    assert_eq!(numbers(&one.forward(&x).unwrap()), numbers(&one.forward(&x).unwrap()));
}

#[test]
fn layers_print_their_sizes() {
    let d = device();
    with_init(&d, |init| {
        let config = RecurrentConfig { num_layers: 2, ..Default::default() };
        let text = Lstm::new(3, 4, config, init).unwrap().to_string();
        assert!(text.starts_with("Lstm(input_size=3, hidden_size=4, num_layers=2"), "{text}");
        let text = GruCell::new(3, 4, true, init).unwrap().to_string();
        assert!(text.contains("input_size=3, hidden_size=4"), "{text}");
        let config = TransformerConfig { dim_feedforward: 6, ..Default::default() };
        let text = TransformerEncoder::new(1, 4, 2, config, false, init).unwrap().to_string();
        assert!(text.contains("(self_attn): MultiheadAttention("), "{text}");
    });
}

#[test]
fn a_table_of_positions_is_made_again_for_other_features_and_more_positions() {
    let d = device();
    let (layer, rotary) = (SinusoidalPositions::new(), RotaryEmbedding::new(4, 100.0).unwrap());
    for (length, dim, dtype) in [(3, 4, DType::F64), (9, 4, DType::F64), (2, 8, DType::F64), (2, 8, DType::F32)] {
        let zeros = Tensor::zeros([2, length, dim], dtype, &d).unwrap();
        let table = SinusoidalPositions::table(0, length, dim, dtype, &d).unwrap();
        for _ in 0..2 {
            let y = layer.forward(&zeros).unwrap().select(0, 1).unwrap();
            assert_eq!(y.to_bytes().unwrap(), table.to_bytes().unwrap());
        }
        let x = values(&[length, dim], &d).to_dtype(dtype).unwrap();
        let fresh = RotaryEmbedding::new(4, 100.0).unwrap();
        assert_eq!(rotary.apply(&x, 5).unwrap().to_bytes().unwrap(), fresh.apply(&x, 5).unwrap().to_bytes().unwrap());
    }
}

#[test]
fn a_cache_without_tokens_takes_another_batch() {
    let d = device();
    let mut cache = KvCache::new();
    let (two, three) = (values(&[2, 1, 4, 3], &d), values(&[3, 1, 4, 3], &d));
    let _ = cache.append(&two, &two).unwrap();
    assert!(cache.append(&three, &three).is_err());
    cache.truncate(0).unwrap();
    close(&cache.append(&three, &three).unwrap().0, &three);
}

#[test]
fn a_mask_of_integers_is_refused_on_every_path() {
    let d = device();
    with_init(&d, |init| {
        let x = values(&[2, 3, 4], &d);
        for add_zero_attn in [false, true] {
            let config = MultiheadAttentionConfig { add_zero_attn, ..Default::default() };
            let layer = MultiheadAttention::new(4, 2, config, init).unwrap();
            let (whole, keys) = (Tensor::ones([3, 3], DType::I64, &d).unwrap(), Tensor::ones([2, 3], DType::I64, &d));
            let keys = keys.unwrap();
            let bools = keys.to_dtype(DType::Bool).unwrap();
            for (mask, key_mask, name) in [
                (Some(&whole), None, "mask "),
                (Some(&whole), Some(&bools), "mask "),
                (None, Some(&keys), "key_mask "),
                (Some(&bools), Some(&keys), "key_mask "),
            ] {
                let masks = Masks { mask, key_mask, causal: Causal::TopLeft };
                for e in [
                    layer.attend_with(&x, &x, &x, masks).err().unwrap(),
                    layer.attend_with_weights(&x, &x, &x, masks).err().unwrap(),
                ] {
                    assert_eq!(e.kind(), &ErrorKind::UnsupportedDType, "{e}");
                    assert!(e.to_string().contains(name) && e.to_string().contains("true to keep"), "{e}");
                }
            }
        }
    });
}

#[track_caller]
fn says<T>(found: Result<T>, text: &str) {
    let e: Error = found.err().unwrap();
    assert!(e.to_string().contains(text), "{e}");
}

#[test]
fn what_does_not_fit_is_an_error() {
    let d = device();
    with_init(&d, |init| {
        let config = RecurrentConfig { batch_first: true, ..Default::default() };
        let gru = Gru::new(3, 4, config, init).unwrap();
        let x = values(&[2, 5, 3], &d);
        says(gru.run(&x, Some(&[3, 4]), None), "length 4 of sequence 1 follows length 3");
        says(gru.run(&x, Some(&[5, 0]), None), "sequence 1 has length 0");
        says(gru.run(&x, Some(&[6, 1]), None), "sequence 0 has length 6");
        says(gru.run(&x, Some(&[5]), None), "1 lengths for 2 sequences");
        says(gru.run(&x.select(0, 0).unwrap(), Some(&[5]), None), "without a batch axis");
        says(gru.run(&x, None, Some(&values(&[1, 3, 4], &d))), "an initial state is not [1, 2, 4]");
        says(gru.forward(&values(&[2, 5, 4], &d)), "the input has 4 features, the layer takes 3");
        says(gru.forward(&values(&[3], &d)), "rank 3");
        says(gru.forward(&x.narrow(1, 0, 0).unwrap()), "no time steps");
        let cell = LstmCell::new(3, 4, true, init).unwrap();
        says(cell.step(&values(&[2, 4], &d), None), "the input is not [n, 3] or [3]");
        let (h, c) = (values(&[2, 4], &d), values(&[1, 4], &d));
        says(cell.step(&values(&[2, 3], &d), Some((&h, &c))), "a state is not [2, 4]");

        says(Gru::new(3, 0, config, init), "the hidden size is 0");
        says(Gru::new(3, 2, RecurrentConfig { num_layers: 0, ..config }, init), "the number of layers is 0");
        says(Gru::new(3, 2, RecurrentConfig { dropout: 1.5, ..config }, init), "dropout is 1.5");
        says(Gru::new(3, usize::MAX, config, init), "too many features");
        let grouped = MultiheadAttentionConfig { num_kv_heads: Some(3), ..Default::default() };
        says(MultiheadAttention::new(8, 4, grouped, init), "3 key heads do not divide 4 query heads");
        says(RotaryEmbedding::new(3, 100.0), "3 features are no pairs");
        says(RotaryEmbedding::new(2, 0.0), "the base is 0");
        says(RotaryEmbedding::new(4, 100.0).unwrap().apply(&h.narrow(1, 0, 2).unwrap(), 0), "at least 4");
        says(SinusoidalPositions::new().forward(&values(&[2, 3], &d)), "3 features are no pairs");
        let learned = LearnedPositions::new(3, 4, init).unwrap();
        close(&learned.forward(&h.zeros_like().unwrap()).unwrap(), &learned.weight.narrow(0, 0, 2).unwrap());
        says(learned.forward(&values(&[4, 4], &d)), "at most 3");
        let base = || Linear::new(4, 3, &mut Init::new(DType::F64, &d, &mut gradus_tensor::Generator::new(0))).unwrap();
        says(LoraLinear::new(base(), 0, LoraConfig::default(), init), "the rank is 0");
        let config = TransformerConfig { dim_feedforward: 6, ..Default::default() };
        let encoder = TransformerEncoder::new(2, 4, 2, config, false, init).unwrap();
        let e = encoder.forward(&values(&[2, 3, 5], &d)).unwrap_err();
        assert_eq!(e.layer().map(|l| l.to_string()), Some("layers.0.self_attn (MultiheadAttention)".to_owned()), "{e}");
    });
}

#[test]
fn a_low_rank_update_begins_as_its_base_and_trains_alone() {
    let d = device();
    with_init(&d, |init| {
        let base = Linear::new(4, 3, init).unwrap();
        let x = values(&[5, 4], &d);
        let before = base.forward(&x).unwrap();
        let config = LoraConfig { dropout: 0.5, ..Default::default() };
        let mut layer = LoraLinear::new(base, 2, config, init).unwrap();
        close(&layer.forward(&x).unwrap(), &before);
        let weight = layer.base_layer.weight.values().copy().unwrap();
        let mut optimizer = Sgd::new(layer.named_parameters(), SgdConfig { lr: 1e-3, ..Default::default() }).unwrap();
        for _ in 0..3 {
            let loss = layer.forward(&x).unwrap().square().unwrap().sum_all().unwrap();
            optimizer.step(&loss.backward().unwrap()).unwrap();
        }
        close(layer.base_layer.weight.values(), &weight);
        assert_ne!(numbers(&layer.update().unwrap()), [0.0; 12]);
        layer.eval();
        let trained = layer.forward(&x).unwrap();
        let plain = layer.merge_and_unload().unwrap();
        close(&plain.forward(&x).unwrap(), &trained);
        assert!(plain.weight.is_frozen());
        close(layer.base_layer.weight.values(), &weight);
        close(&layer.forward(&x).unwrap(), &trained);
    });
}

#[test]
fn the_base_layer_determines_the_dtype_of_a_low_rank_update() {
    let d = device();
    with_init(&d, |init| {
        let mut base = Linear::new(4, 3, init).unwrap();
        base.cast_parameters(DType::BF16).unwrap();
        let layer = LoraLinear::new(base, 2, LoraConfig::default(), init).unwrap();
        layer.lora_b.weight.set(&values(&[3, 2], &d)).unwrap();
        let x = values(&[5, 4], &d).to_dtype(DType::BF16).unwrap();
        let y = layer.forward(&x).unwrap();
        assert_eq!((y.dtype(), layer.lora_a.weight.dtype()), (DType::BF16, DType::F64));
        let plain = layer.merge_and_unload().unwrap();
        assert_eq!(plain.weight.dtype(), DType::BF16);
        let difference = plain.forward(&x).unwrap().sub(&y).unwrap().to_dtype(DType::F64).unwrap();
        assert!(numbers(&difference).iter().all(|v| v.abs() < 0.2), "{difference:?}");
    });
}
