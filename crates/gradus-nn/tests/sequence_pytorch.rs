//! Sequence layers beside PyTorch: outputs, final states, and the gradients of inputs and parameters.
//! `reference/sequence.py` wrote the values.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;

use common::{device, with_init};
use gradus_nn::*;
use gradus_tensor::ops::causal_mask;
use gradus_tensor::{Causal, DType, Device, Result, Tensor, no_grad};

/// The values of the reference file.
struct Reference {
    device: Device,
    all: StateDict,
}

impl Reference {
    fn load() -> Reference {
        let device = device();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/sequence.safetensors");
        let all = StateDict::load_safetensors(path, &device).unwrap();
        Reference { device, all }
    }

    fn get(&self, name: &str) -> Tensor {
        self.all.get(name).unwrap_or_else(|| panic!("the file has no {name}")).clone()
    }

    /// The tensors `prefix0`, `prefix1`, ..
    fn list(&self, prefix: &str) -> Vec<Tensor> {
        (0..).map_while(|i| self.all.get(&format!("{prefix}{i}")).cloned()).collect()
    }

    /// The tensors below a prefix, under the rest of their names.
    fn below(&self, prefix: &str) -> StateDict {
        let mut found = StateDict::new();
        for (name, t) in self.all.iter() {
            if let Some(rest) = name.strip_prefix(prefix) {
                found.insert(rest, t.clone());
            }
        }
        found
    }

    /// Loads the parameters of a case, runs it, and compares everything that the file has of it.
    #[track_caller]
    fn check<M: Module>(&self, case: &str, mut layer: M, run: impl Fn(&M, &[Tensor]) -> Result<Vec<Tensor>>) {
        layer.load_state_dict(&self.below(&format!("{case}/param/")), Strict::Yes).unwrap();
        let inputs: Vec<Tensor> =
            self.list(&format!("{case}/in/")).iter().map(|t| t.detach().with_grad().unwrap()).collect();
        let outputs = run(&layer, &inputs).unwrap();
        let want = self.list(&format!("{case}/out/"));
        assert_eq!(outputs.len(), want.len(), "{case}");
        let mut loss = Tensor::zeros([], DType::F64, &self.device).unwrap();
        for (i, (y, want)) in outputs.iter().zip(&want).enumerate() {
            close(&format!("{case}/out/{i}"), y, want);
            let weight = self.get(&format!("{case}/weight/{i}"));
            loss = loss.add(y.mul(&weight).unwrap().sum_all().unwrap()).unwrap();
        }
        let gradients = loss.backward().unwrap();
        for (i, x) in inputs.iter().enumerate() {
            let name = format!("{case}/din/{i}");
            close(&name, gradients.get(x).unwrap_or_else(|| panic!("no {name}")), &self.get(&name));
        }
        let wanted = self.below(&format!("{case}/dparam/"));
        let mut compared = 0;
        for (name, p) in layer.named_parameters() {
            let Some(want) = wanted.get(&name) else { continue };
            let name = format!("{case}/dparam/{name}");
            close(&name, gradients.get(p.tensor()).unwrap_or_else(|| panic!("no {name}")), want);
            compared += 1;
        }
        assert_eq!(compared, wanted.len(), "{case}");
    }
}

#[track_caller]
fn close(name: &str, got: &Tensor, want: &Tensor) {
    assert_eq!(got.shape(), want.shape(), "{name}");
    let (got, want) = (got.to_vec::<f64>().unwrap(), want.to_vec::<f64>().unwrap());
    for (i, (g, w)) in got.iter().zip(&want).enumerate() {
        assert!((g - w).abs() <= 1e-11 * (1.0 + w.abs()), "{name}, element {i}: {g} is not {w}");
    }
}

/// Runs an attention layer on the inputs of a case.
type Attends<'a> = dyn Fn(&MultiheadAttention, &[Tensor]) -> Result<Vec<Tensor>> + 'a;

/// Runs a layer with one state.
macro_rules! one_state {
    ($lengths:expr) => {
        |layer, x| {
            let (y, h) = layer.run(&x[0], $lengths, x.get(1))?;
            Ok(vec![y, h])
        }
    };
}

#[test]
fn recurrent_layers() {
    let reference = Reference::load();
    let both = RecurrentConfig { num_layers: 2, bidirectional: true, ..Default::default() };
    let batch = RecurrentConfig { batch_first: true, ..both };
    let plain = RecurrentConfig { bias: false, ..Default::default() };
    let cases: [(&str, RecurrentConfig, Option<&[usize]>); 3] =
        [("both", both, None), ("lengths", batch, Some(&[4, 2, 1])), ("one_sequence", plain, None)];
    for (case, config, lengths) in cases {
        with_init(&reference.device, |init| {
            for (name, activation) in [("rnn_tanh", Nonlinearity::Tanh), ("rnn_relu", Nonlinearity::Relu)] {
                let layer = Rnn::new(3, 2, activation, config, init).unwrap();
                reference.check(&format!("{name}/{case}"), layer, one_state!(lengths));
            }
            let layer = Gru::new(3, 2, config, init).unwrap();
            reference.check(&format!("gru/{case}"), layer, one_state!(lengths));
            let layer = Lstm::new(3, 2, config, init).unwrap();
            reference.check(&format!("lstm/{case}"), layer, |layer, x| {
                let states = if let [_, h, c] = x { Some([h, c]) } else { None };
                let (y, [h, c]) = layer.run(&x[0], lengths, states)?;
                Ok(vec![y, h, c])
            });
        });
    }
}

#[test]
fn projections() {
    let reference = Reference::load();
    let both = RecurrentConfig { num_layers: 2, bidirectional: true, proj_size: 2, ..Default::default() };
    let batch = RecurrentConfig { batch_first: true, ..both };
    let plain = RecurrentConfig { bias: false, proj_size: 1, ..Default::default() };
    let cases: [(&str, RecurrentConfig, Option<&[usize]>); 3] =
        [("both", both, None), ("lengths", batch, Some(&[4, 2, 1])), ("one_sequence", plain, None)];
    for (case, config, lengths) in cases {
        let layer = with_init(&reference.device, |init| Lstm::new(3, 4, config, init).unwrap());
        reference.check(&format!("lstm_projected/{case}"), layer, |layer, x| {
            let states = if let [_, h, c] = x { Some([h, c]) } else { None };
            let (y, [h, c]) = layer.run(&x[0], lengths, states)?;
            Ok(vec![y, h, c])
        });
    }
    with_init(&reference.device, |init| {
        assert!(Lstm::new(3, 2, RecurrentConfig { proj_size: 2, ..Default::default() }, init).is_err());
        assert!(Gru::new(3, 2, RecurrentConfig { proj_size: 1, ..Default::default() }, init).is_err());
        let layer = Lstm::new(3, 4, batch, init).unwrap();
        let x = Tensor::ones([3, 4, 3], DType::F64, &reference.device).unwrap();
        let no_steps = layer.run(&x.narrow(1, 0, 0).unwrap(), None, None).unwrap_err().to_string();
        assert!(no_steps.contains("no time steps"), "{no_steps}");
        // Steps behind the longest sequence change nothing.
        let (y, [h, _]) = layer.run(&x, Some(&[3, 2, 1]), None).unwrap();
        let (short, [last, _]) = layer.run(&x.narrow(1, 0, 3).unwrap(), Some(&[3, 2, 1]), None).unwrap();
        assert_eq!(y.narrow(1, 0, 3).unwrap().to_vec::<f64>().unwrap(), short.to_vec::<f64>().unwrap());
        assert_eq!(h.to_vec::<f64>().unwrap(), last.to_vec::<f64>().unwrap());
        assert!(y.select(1, 3).unwrap().to_vec::<f64>().unwrap().iter().all(|&v| v == 0.0));
        for lengths in [&[4, 2][..], &[2, 4, 1], &[4, 2, 0], &[5, 2, 1]] {
            assert!(layer.run(&x, Some(lengths), None).is_err(), "{lengths:?}");
        }
    });
}

#[test]
fn recurrent_cells() {
    let reference = Reference::load();
    for (case, bias) in [("batch", true), ("alone", false)] {
        with_init(&reference.device, |init| {
            for (name, activation) in [("rnn_tanh", Nonlinearity::Tanh), ("rnn_relu", Nonlinearity::Relu)] {
                let cell = RnnCell::new(3, 2, bias, activation, init).unwrap();
                reference.check(&format!("{name}_cell/{case}"), cell, |c, x| Ok(vec![c.step(&x[0], x.get(1))?]));
            }
            let cell = GruCell::new(3, 2, bias, init).unwrap();
            reference.check(&format!("gru_cell/{case}"), cell, |c, x| Ok(vec![c.step(&x[0], x.get(1))?]));
            let cell = LstmCell::new(3, 2, bias, init).unwrap();
            reference.check(&format!("lstm_cell/{case}"), cell, |c, x| {
                let states = if let [_, h, c] = x { Some((h, c)) } else { None };
                let (h, c) = c.step(&x[0], states)?;
                Ok(vec![h, c])
            });
        });
    }
}

#[test]
fn attention() {
    let reference = Reference::load();
    let make = |config| with_init(&reference.device, |init| MultiheadAttention::new(4, 2, config, init).unwrap());
    let plain = MultiheadAttentionConfig::default();
    let weights = |layer: &MultiheadAttention, q: &Tensor, k: &Tensor, v: &Tensor, masks: Masks<'_>| {
        let (y, w) = layer.attend_with_weights(q, k, v, masks)?;
        // The way without weights gives the same.
        close("attend_with", &layer.attend_with(q, k, v, masks)?, &y);
        Ok(vec![y, w])
    };
    let check = |case: &str, config, run: &Attends<'_>| {
        reference.check(case, make(config), run);
    };
    check("attention/self", plain, &|l, x| weights(l, &x[0], &x[0], &x[0], Masks::default()));
    check("attention/alone", plain, &|l, x| weights(l, &x[0], &x[1], &x[1], Masks::default()));
    let (keep, keys) = (reference.get("attention/masks/arg/mask"), reference.get("attention/masks/arg/keys"));
    let masks = Masks { mask: Some(&keep), key_mask: Some(&keys), ..Default::default() };
    check("attention/masks", plain, &|l, x| weights(l, &x[0], &x[1], &x[1], masks));
    check("attention/biases", plain, &|l, x| {
        let masks = Masks { mask: Some(&x[2]), key_mask: Some(&x[3]), ..Default::default() };
        weights(l, &x[0], &x[1], &x[1], masks)
    });
    check("attention/mixed", plain, &|l, x| {
        let masks = Masks { mask: Some(&x[2]), key_mask: Some(&keys), ..Default::default() };
        weights(l, &x[0], &x[1], &x[1], masks)
    });
    let causal = Masks::causal(Causal::TopLeft);
    check("attention/causal", plain, &|l, x| Ok(vec![l.attend_with(&x[0], &x[0], &x[0], causal)?]));
    check("attention/causal_weights", plain, &|l, x| weights(l, &x[0], &x[0], &x[0], causal));
    let square = causal_mask(3, 3, Causal::TopLeft, &reference.device).unwrap();
    let by_mask = Masks { mask: Some(&square), ..Default::default() };
    check("attention/causal", plain, &|l, x| Ok(vec![l.attend_with(&x[0], &x[0], &x[0], by_mask)?]));
    let sizes = MultiheadAttentionConfig { bias: false, kdim: Some(3), vdim: Some(5), ..plain };
    check("attention/sizes", sizes, &|l, x| weights(l, &x[0], &x[1], &x[2], Masks::default()));
    let time = MultiheadAttentionConfig { batch_first: false, ..plain };
    check("attention/time_first", time, &|l, x| weights(l, &x[0], &x[1], &x[1], Masks::default()));
    let more = MultiheadAttentionConfig { add_bias_kv: true, add_zero_attn: true, ..plain };
    check("attention/added", more, &|l, x| weights(l, &x[0], &x[1], &x[1], masks));
    check("attention/added_causal", more, &|l, x| Ok(vec![l.attend_with(&x[0], &x[0], &x[0], causal)?]));
}

#[test]
fn transformers() {
    let reference = Reference::load();
    let post = TransformerConfig { dim_feedforward: 6, dropout: 0.0, ..Default::default() };
    let first = TransformerConfig { norm_first: true, activation: TransformerActivation::Gelu, ..post };
    let causal = Masks::causal(Causal::TopLeft);
    with_init(&reference.device, |init| {
        let keys = reference.get("encoder_layer/post/arg/keys");
        let layer = TransformerEncoderLayer::new(4, 2, post, init).unwrap();
        let masks = Masks { key_mask: Some(&keys), ..causal };
        reference.check("encoder_layer/post", layer, |l, x| Ok(vec![l.run(&x[0], masks)?]));
        let config = TransformerConfig { bias: false, layer_norm_eps: 1e-3, ..first };
        let layer = TransformerEncoderLayer::new(4, 2, config, init).unwrap();
        reference.check("encoder_layer/norm_first", layer, |l, x| Ok(vec![l.forward(&x[0])?]));
        let encoder = TransformerEncoder::new(2, 4, 2, post, true, init).unwrap();
        reference.check("encoder", encoder, |l, x| Ok(vec![l.run(&x[0], causal)?]));

        let keys = reference.get("decoder_layer/post/arg/keys");
        let of_memory = Masks { key_mask: Some(&keys), ..Default::default() };
        let layer = TransformerDecoderLayer::new(4, 2, post, init).unwrap();
        reference.check("decoder_layer/post", layer, |l, x| Ok(vec![l.run(&x[0], &x[1], causal, of_memory)?]));
        let layer = TransformerDecoderLayer::new(4, 2, first, init).unwrap();
        let none = Masks::default();
        reference.check("decoder_layer/norm_first", layer, |l, x| Ok(vec![l.run(&x[0], &x[1], none, none)?]));
        let decoder = TransformerDecoder::new(2, 4, 2, post, false, init).unwrap();
        reference.check("decoder", decoder, |l, x| Ok(vec![l.run(&x[0], &x[1], causal, none)?]));

        let model = Transformer::new(4, 2, 1, 1, post, init).unwrap();
        let masks = TransformerMasks { src: of_memory, tgt: causal, memory: of_memory };
        reference.check("transformer", model, |m, x| Ok(vec![m.run(&x[0], &x[1], masks)?]));
    });
}

#[test]
fn positions() {
    let reference = Reference::load();
    let rotary = RotaryEmbedding::new(4, 10_000.0).unwrap();
    reference.check("rotary/interleaved", (), |_, x| Ok(vec![rotary.apply(&x[0], 7)?]));
    let rotary = rotary.half_split();
    reference.check("rotary/half_split", (), |_, x| Ok(vec![rotary.apply(&x[0], 7)?]));
    let d = &reference.device;
    let table = SinusoidalPositions::table(0, 6, 8, DType::F64, d).unwrap();
    close("sinusoidal", &table, &reference.get("sinusoidal/out/0"));
    let later = SinusoidalPositions::table(2, 4, 8, DType::F64, d).unwrap();
    close("sinusoidal from 2", &later, &table.narrow(0, 2, 4).unwrap());
    close("alibi", &alibi_bias(6, 3, 5, DType::F64, d).unwrap(), &reference.get("alibi/out/0"));
}

#[test]
fn low_rank_updates() {
    let reference = Reference::load();
    with_init(&reference.device, |init| {
        let base = Linear::new(4, 3, init).unwrap();
        let config = LoraConfig { alpha: 6.0, ..Default::default() };
        let layer = LoraLinear::new(base, 2, config, init).unwrap();
        reference.check("lora", layer.clone(), |l, x| Ok(vec![l.forward(&x[0])?]));
        let (x, plain) = (reference.get("lora/in/0"), layer.merge_and_unload().unwrap());
        close("merged", &no_grad(|| plain.forward(&x)).unwrap(), &reference.get("lora/out/0"));
    });
}
