//! Saving and loading the state of optimisers: what fits, what does not, and what happens in each case.
#![allow(clippy::unwrap_used)]

mod common;

use common::{assert_close, device, gradients, named, parameter, values};
use gradus_nn::{
    Adam, AdamConfig, AdamW, Group, LoadReport, NAdam, NAdamConfig, Optimizer, Parameter, Sgd, SgdConfig, StateDict,
    Strict,
};
use gradus_tensor::{DType, Device, ErrorKind, Tensor};

#[test]
fn a_state_follows_its_parameters_into_any_dtype() {
    let device = device();
    for (from, to) in [
        (DType::BF16, DType::F32),
        (DType::F16, DType::BF16),
        (DType::F16, DType::F64),
        (DType::F32, DType::F16),
        (DType::F64, DType::BF16),
    ] {
        let p = Parameter::new(Tensor::ones([2], from, &device).unwrap()).unwrap();
        let mut adam = Adam::new(named(&[("p", &p)]), AdamConfig::default()).unwrap();
        adam.step(&gradients(&[(&p, &[0.5, -2.0])], &device)).unwrap();
        let before = adam.state_dict().unwrap();

        let cast = Parameter::new(p.detach().to_dtype(to).unwrap()).unwrap();
        let mut loaded = Adam::new(named(&[("p", &cast)]), AdamConfig::default()).unwrap();
        loaded.load_state_dict(&before, Strict::Yes).unwrap();
        adam.rebind(named(&[("p", &cast)])).unwrap();
        for optimizer in [&adam, &loaded] {
            let after = optimizer.state_dict().unwrap();
            assert_eq!(after.metadata("steps.p"), Some("1"));
            let master = after.get("p.master");
            assert!(master.is_none() || to != to.compute(), "{from} {to}: no copy of what is exact");
            for slot in ["p.exp_avg", "p.exp_avg_sq"] {
                let (old, new) = (before.get(slot).unwrap(), after.get(slot).unwrap());
                assert_eq!(new.dtype(), to.compute());
                let want = old.to_dtype(to.compute()).unwrap().to_dtype(DType::F64).unwrap();
                assert_close(new, &want.to_vec::<f64>().unwrap());
            }
        }
        adam.step(&gradients(&[(&cast, &[500.0, -500.0])], &device)).unwrap();
        assert_eq!(adam.state_dict().unwrap().metadata("steps.p"), Some("2"));

        let mut wrong = before.clone();
        wrong.remove("p.master");
        wrong.insert("p.master", values(&[3], &device));
        let e = loaded.load_state_dict(&wrong, Strict::Yes).unwrap_err().to_string();
        assert!(e.contains("mismatched (1): p.master is [3] f64, not [2]"), "{e}");
    }
}

#[test]
fn two_parameters_of_one_name_are_refused_by_rebind() {
    let device = device();
    let (p, q) = (parameter(&[1.0], &device), parameter(&[2.0], &device));
    let mut sgd = Sgd::new(named(&[("p", &p)]), SgdConfig::default()).unwrap();
    let e = sgd.rebind(named(&[("p", &q), ("p", &p)])).unwrap_err();
    assert_eq!(e.kind(), &ErrorKind::InvalidArgument, "{e}");
    assert!(e.message().contains("two parameters have the name \"p\""), "{e}");
    assert!(sgd.parameters()[0].is_same(&p));
}

#[test]
fn parts_of_parameters_are_stepped_as_the_whole_and_the_state_comes_back() {
    let device = device();
    let four = [1.0, -2.0, 3.0, -4.0];
    let adam = |p: &Parameter| {
        let matrices = Group::new(named(&[("p", p)])).weight_decay(0.1).lr(0.03);
        AdamW::with_groups([matrices], AdamConfig::default()).unwrap()
    };
    let step = |adam: &mut AdamW, p: &Parameter, g: &[f64]| adam.step(&gradients(&[(p, g)], &device)).unwrap();
    let (whole, p) = (parameter(&four, &device), parameter(&four, &device));
    let (mut expected, mut divided) = (adam(&whole), adam(&p));
    for optimizer in [(&mut expected, &whole), (&mut divided, &p)] {
        step(optimizer.0, optimizer.1, &[0.5, 1.0, -1.5, 2.0]);
    }
    step(&mut expected, &whole, &[0.25, 1.0, 4.0, -1.0]);

    // The second and third element, with their part of the state.
    let before = divided.state_dict().unwrap();
    let mut state = before.clone();
    for slot in ["p.exp_avg", "p.exp_avg_sq"] {
        state.insert(slot, before.get(slot).unwrap().narrow(0, 1, 2).unwrap());
    }
    let part = parameter(&p.to_vec::<f64>().unwrap()[1..3], &device);
    let refused = divided.rebind_with(named(&[("p", &part)]), &before).unwrap_err();
    assert!(refused.to_string().contains("p.exp_avg is [4] f64, not [2]"), "{refused}");
    assert!(divided.rebind_with(named(&[("q", &part)]), &state).is_err());
    assert!(divided.parameters()[0].is_same(&p));
    divided.rebind_with(named(&[("p", &part)]), &state).unwrap();
    step(&mut divided, &part, &[1.0, 4.0]);
    assert_eq!(part.to_vec::<f64>().unwrap(), whole.to_vec::<f64>().unwrap()[1..3]);
    assert_eq!(divided.lr(), [0.03]);

    let state = expected.state_dict().unwrap();
    divided.rebind_with(named(&[("p", &whole)]), &state).unwrap();
    assert_eq!(bits(&divided), bits(&expected));
}

/// The tensors and metadata of the state, to the bit.
fn bits(optimizer: &impl Optimizer) -> Vec<(String, Vec<u8>)> {
    let state = optimizer.state_dict().unwrap();
    let tensors = state.iter().map(|(name, t)| (name.to_owned(), t.to_bytes().unwrap()));
    let texts = state.iter_metadata().map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec()));
    tensors.chain(texts).collect()
}

#[test]
fn a_state_that_does_not_fit_is_refused_as_a_whole() {
    let device = device();
    let p = parameter(&[1.0, 2.0], &device);
    let make = || {
        let mut adam = Adam::new(named(&[("p", &p)]), AdamConfig { lr: 0.01, ..Default::default() }).unwrap();
        adam.step(&gradients(&[(&p, &[1.0, 1.0])], &device)).unwrap();
        adam
    };
    let good = make().state_dict().unwrap();
    let mut noted = good.clone();
    noted.set_metadata("best.step", "a note of the user's");
    assert!(make().load_state_dict(&noted, Strict::Yes).unwrap().is_complete());
    let refused = |part: &str, change: &dyn Fn(&mut StateDict)| {
        let mut state = good.clone();
        change(&mut state);
        let mut adam = make();
        let before = bits(&adam);
        let error = adam.load_state_dict(&state, Strict::Yes).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
        assert_eq!(bits(&adam), before);
    };
    refused("optimiser \"unknown\"", &|s| *s = StateDict::new());
    refused("optimiser \"sgd\"", &|s| s.set_metadata("optimizer", "sgd"));
    refused("is \"fast\", which is no number", &|s| s.set_metadata("group.0.lr", "fast"));
    refused("group.0.lr is -1", &|s| s.set_metadata("group.0.lr", "-1"));
    refused("unexpected (1): group.1.lr", &|s| s.set_metadata("group.1.lr", "1"));
    refused("which is no number", &|s| s.set_metadata("steps.p", "-1"));
    refused("unexpected (2): p.exp_avg, p.exp_avg_sq", &|s| s.set_metadata("steps.p", "0"));
    let broken = |s: &mut StateDict| {
        s.remove("p.exp_avg");
        s.insert("p.exp_avg_sq", values(&[3], &device));
        s.insert("r.exp_avg", values(&[3], &device));
        s.set_metadata("steps.q", "3");
        s.insert("q.exp_avg", values(&[3], &device));
    };
    refused("missing (1): p.exp_avg", &broken);
    refused("mismatched (1): p.exp_avg_sq is [3] f64, not [2] f64", &broken);
    refused("unexpected (2): q, r.exp_avg", &broken);
    refused("nothing was loaded", &broken);
    let renamed: StateDict = good.iter().map(|(name, t)| (name.replace("p.", "q."), t.clone())).collect();
    refused("missing (1): steps.p", &|s| {
        *s = renamed.clone();
        good.iter_metadata().filter(|(key, _)| *key != "steps.p").for_each(|(key, text)| s.set_metadata(key, text));
        s.insert("p.exp_avg", values(&[2], &device));
    });
}

/// Loads the state of an optimiser of `a` and `b` into an optimiser of `b` and `c`. Returns the report.
fn across<O: Optimizer>(make: impl Fn(Vec<(String, Parameter)>) -> O, device: &Device) -> LoadReport {
    let [a, b, c] = [1.0, 2.0, 3.0].map(|v| parameter(&[v], device));
    let mut saved = make(named(&[("a", &a), ("b", &b)]));
    for _ in 0..3 {
        saved.step(&gradients(&[(&a, &[1.0]), (&b, &[2.0])], device)).unwrap();
    }
    saved.set_lr(0, 0.125).unwrap();
    let mut target = make(named(&[("b", &b), ("c", &c)]));
    target.step(&gradients(&[(&b, &[4.0]), (&c, &[5.0])], device)).unwrap();
    let (state, before) = (saved.state_dict().unwrap(), bits(&target));

    let error = target.load_state_dict(&state, Strict::Yes).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::InvalidArgument);
    let text = error.to_string();
    assert!(text.contains("missing (1): c") && text.contains("unexpected (1): a"), "{text}");
    assert!(text.contains("Strict::No"), "{text}");
    assert_eq!(bits(&target), before);

    let report = target.load_state_dict(&state, Strict::No).unwrap();
    let (from, after) = (bits(&saved), bits(&target));
    let of = |bits: &[(String, Vec<u8>)], name: &str| -> Vec<(String, Vec<u8>)> {
        let is_of = |key: &str| key.trim_start_matches("steps.").split('.').next() == Some(name);
        bits.iter().filter(|(key, _)| is_of(key)).cloned().collect()
    };
    assert_eq!((of(&after, "b"), of(&after, "c")), (of(&from, "b"), of(&before, "c")));
    assert_ne!(of(&after, "b"), of(&before, "b"));
    assert_eq!(target.lr(), [0.125]);
    report
}

#[test]
fn the_state_of_other_parameters_is_refused_or_loaded_where_it_fits() {
    let device = device();
    let adam = across(|p| AdamW::new(p, AdamConfig::default()).unwrap(), &device);
    // Without momentum there are no tensors whose names could differ.
    let sgd = across(|p| Sgd::new(p, SgdConfig::default()).unwrap(), &device);
    assert_eq!(adam, sgd);
    assert_eq!(adam.loaded, ["lr_factor", "group.0.lr", "group.0.weight_decay", "b"]);
    assert_eq!((adam.missing, adam.unexpected), (vec!["c".to_owned()], vec!["a".to_owned()]));
    assert_eq!((adam.mismatched, adam.kept), (vec![], vec!["c".to_owned()]));
    assert_eq!(sgd.to_string(), "loaded 4, kept 1\n  missing (1): c\n  unexpected (1): a");
}

#[test]
fn a_parameter_that_was_never_stepped_is_in_the_state_all_the_same() {
    let device = device();
    let (a, b) = (parameter(&[1.0], &device), parameter(&[1.0], &device));
    let make = || AdamW::new(named(&[("a", &a), ("b", &b)]), AdamConfig::default()).unwrap();
    let mut saved = make();
    saved.step(&gradients(&[(&a, &[1.0])], &device)).unwrap();
    let state = saved.state_dict().unwrap();
    assert_eq!((state.metadata("steps.a"), state.metadata("steps.b")), (Some("1"), Some("0")));
    // Steps made before loading leave no trace.
    let mut target = make();
    target.step(&gradients(&[(&a, &[1.0]), (&b, &[1.0])], &device)).unwrap();
    let report = target.load_state_dict(&state, Strict::Yes).unwrap();
    assert!(report.is_complete() && report.kept.is_empty());
    assert_eq!(bits(&target), bits(&saved));
}

#[test]
fn groups_that_a_state_lacks_keep_their_numbers() {
    let device = device();
    let (a, b) = (parameter(&[1.0], &device), parameter(&[1.0], &device));
    let config = SgdConfig { lr: 0.5, ..Default::default() };
    let one = Sgd::new(named(&[("a", &a), ("b", &b)]), config).unwrap().state_dict().unwrap();
    let groups = [Group::new(named(&[("a", &a)])).lr(0.1), Group::new(named(&[("b", &b)])).lr(0.2)];
    let mut two = Sgd::with_groups(groups, config).unwrap();
    let error = two.load_state_dict(&one, Strict::Yes).unwrap_err().to_string();
    assert!(error.contains("missing (2): group.1.lr, group.1.weight_decay"), "{error}");
    assert_eq!(two.lr(), [0.1, 0.2]);
    let report = two.load_state_dict(&one, Strict::No).unwrap();
    assert_eq!(report.kept, ["group.1.lr", "group.1.weight_decay"]);
    assert_eq!(two.lr(), [0.5, 0.2]);
}

#[test]
fn nadam_goes_on_from_any_number_of_steps_at_once() {
    let device = device();
    let p = parameter(&[1.0], &device);
    // The product of the momenta is above 0 for more steps than can be multiplied one by one.
    let config = NAdamConfig { beta1: 1.0 - 1e-15, momentum_decay: 1.0, ..Default::default() };
    let mut nadam = NAdam::new(named(&[("p", &p)]), config).unwrap();
    let g = gradients(&[(&p, &[1.0])], &device);
    nadam.step(&g).unwrap();
    let mut state = nadam.state_dict().unwrap();
    state.set_metadata("steps.p", (u64::MAX / 2).to_string());
    nadam.load_state_dict(&state, Strict::Yes).unwrap();
    nadam.step(&g).unwrap();
    assert!(p.item().unwrap().is_finite());
}

#[test]
fn the_largest_number_of_steps_is_no_overflow() {
    let device = device();
    let p = parameter(&[1.0], &device);
    let mut adam = Adam::new(named(&[("p", &p)]), AdamConfig::default()).unwrap();
    let g = gradients(&[(&p, &[1.0])], &device);
    adam.step(&g).unwrap();
    let mut state = adam.state_dict().unwrap();
    state.set_metadata("steps.p", u64::MAX.to_string());
    adam.load_state_dict(&state, Strict::Yes).unwrap();
    adam.step(&g).unwrap();
    assert!(p.item().unwrap().is_finite());
}
