//! Checkpoints and the folders of runs. Nothing is overwritten by accident, and nothing is half-written. In the snippets,
//! `run(device, 2)` makes a model with 2 inputs, its optimiser and a loader, and `fit(&trainer, device)` trains them.

use crate::page::page;
use gradus::prelude::*;
use gradus::train::RunFolder;

page! {
    "Runs and checkpoints":
    a_folder_has_checkpoints_of_another_run,
    the_settings_of_the_saved_run_differ,
    the_model_of_the_checkpoint_differs,
    all_checkpoints_are_damaged,
    a_checkpoint_of_a_later_version,
    another_run_is_at_work_in_the_folder,
    a_checkpoint_is_not_of_a_trainer,
    a_folder_of_a_run_is_not_empty,
    a_folder_is_a_file,
    a_folder_cannot_be_made,
    an_own_state_is_missing,
}

/// A small model, its optimiser and its data.
fn run(device: &Device, features: usize) -> Result<(Linear, AdamW, DataLoader<TensorDataset>)> {
    let mut rng = Generator::new(1);
    let x = Tensor::randn([16, features], DType::F32, device, &mut rng)?;
    let y = x.sum(&[1], false)?.gt(0.0)?.to_dtype(DType::I64)?;
    let model = Linear::new(features, 2, &mut Init::new(DType::F32, device, &mut rng))?;
    let optimizer = AdamW::new(model.named_parameters(), AdamConfig::default())?;
    Ok((model, optimizer, DataLoader::new(TensorDataset::new(x, y)?, device).batch_size(4).build()?))
}

/// Trains such a model with a trainer.
#[track_caller]
fn fit(trainer: &Trainer, device: &Device) -> Result<()> {
    let (mut model, mut optimizer, data) = run(device, 2)?;
    trainer.fit(&mut model, &mut optimizer, &data, None, &Classification::default(), &mut []).map(drop)
}

/// `checkpoints` begins a new run, and the folder holds those of another. They stay as they are.
///
/// Mend: `resume` goes on with the run that was saved; another folder begins anew.
fn a_folder_has_checkpoints_of_another_run(device: &Device) -> Result<Error> {
    fit(&Trainer::new(1)?.checkpoints("first"), device)?;
    let error = fit(&Trainer::new(1)?.checkpoints("first"), device).unwrap_err();

    fit(&Trainer::new(1)?.resume("first"), device)?;
    Ok(error)
}

/// A run goes on only with the settings that it had. The error lists what differs, old and new.
///
/// Mend: use the old settings, or begin a new run from the saved weights in another folder.
fn the_settings_of_the_saved_run_differ(device: &Device) -> Result<Error> {
    fit(&Trainer::new(1)?.resume("settings").config("width", 64), device)?;
    let error = fit(&Trainer::new(1)?.resume("settings").config("width", 128), device).unwrap_err();

    fit(&Trainer::new(1)?.resume("settings").config("width", 64), device)?;
    Ok(error)
}

/// The parameters of the checkpoint are not those of the model. Nothing was changed.
///
/// Mend: make the model and the optimiser as they were made for the run that was saved.
fn the_model_of_the_checkpoint_differs(device: &Device) -> Result<Error> {
    let (mut model, mut optimizer, _) = run(device, 2)?;
    let saved = Checkpoint::of(&model, &optimizer)?;
    let (mut wider, mut other, _) = run(device, 3)?;
    let error = saved.restore(&mut wider, &mut other).unwrap_err();

    saved.restore(&mut model, &mut optimizer)?;
    Ok(error)
}

/// Every checkpoint of the folder fails its length or its checksum. If only the newest is damaged, the one before it is
/// used, and `passed_over` tells.
///
/// Mend: copy the files from a backup, or begin again.
fn all_checkpoints_are_damaged(device: &Device) -> Result<Error> {
    let (model, optimizer, _) = run(device, 2)?;
    let checkpoints = Checkpoints::open("damaged")?;
    checkpoints.save(Checkpoint::of(&model, &optimizer)?)?;
    checkpoints.wait()?;
    let file = std::path::Path::new("damaged/checkpoint-000001.safetensors");
    let whole = std::fs::read(file).unwrap();
    std::fs::write(file, &whole[..100]).unwrap();
    let error = checkpoints.newest(device).unwrap_err();

    std::fs::write(file, whole).unwrap();
    drop(checkpoints);
    assert!(Checkpoints::open("damaged")?.newest(device)?.is_some());
    Ok(error)
}

/// A later version of Gradus wrote the checkpoint. It is not used in part.
///
/// Mend: go on with that version.
fn a_checkpoint_of_a_later_version(device: &Device) -> Result<Error> {
    let (model, optimizer, _) = run(device, 2)?;
    let checkpoints = Checkpoints::open("later")?;
    checkpoints.save(Checkpoint::of(&model, &optimizer)?)?;
    checkpoints.wait()?;
    std::fs::write("later/checkpoint-000001.json", r#"{"format": 9, "gradus": "9.0.0"}"#).unwrap();
    let error = checkpoints.newest(device).unwrap_err();

    Ok(error)
}

/// Two runs would save into one folder. The claim is a lock, which ends with the process that holds it, however it ends.
///
/// Mend: wait, or name another folder.
fn another_run_is_at_work_in_the_folder(_: &Device) -> Result<Error> {
    let first = Checkpoints::open("shared")?;
    let error = Checkpoints::open("shared").unwrap_err();

    drop(first);
    Checkpoints::open("shared")?;
    Ok(error)
}

/// The checkpoint comes from a loop of your own, and a trainer does not know where that loop was.
///
/// Mend: go on in that loop.
fn a_checkpoint_is_not_of_a_trainer(device: &Device) -> Result<Error> {
    let (model, optimizer, _) = run(device, 2)?;
    let checkpoints = Checkpoints::open("own")?;
    checkpoints.save(Checkpoint::of(&model, &optimizer)?)?;
    checkpoints.wait()?;
    drop(checkpoints);
    let error = fit(&Trainer::new(1)?.resume("own"), device).unwrap_err();

    fit(&Trainer::new(1)?.resume("other"), device)?;
    Ok(error)
}

/// A run has a folder to itself, and this one holds files.
///
/// Mend: take the next free name with `next_free`, or allow replacing them: `RunFolder::create(path, true)`, on the
/// command line `--force`.
fn a_folder_of_a_run_is_not_empty(_: &Device) -> Result<Error> {
    std::fs::create_dir("out").unwrap();
    std::fs::write("out/notes.txt", "mine").unwrap();
    let error = RunFolder::create("out", false).unwrap_err();

    assert_eq!(RunFolder::next_free("out")?.path(), std::path::Path::new("out-2"));
    Ok(error)
}

/// The path of a folder is that of a file.
///
/// Mend: name another folder.
fn a_folder_is_a_file(_: &Device) -> Result<Error> {
    std::fs::write("weights", "").unwrap();
    let error = RunFolder::create("weights", false).unwrap_err();

    RunFolder::create("weights-1", false)?;
    Ok(error)
}

/// The system does not allow the folder: a part of the path is a file, the disk is read-only, or rights are missing.
///
/// Mend: name a folder that can be made.
fn a_folder_cannot_be_made(_: &Device) -> Result<Error> {
    std::fs::write("file", "").unwrap();
    let error = Checkpoints::open("file/checkpoints").unwrap_err();

    Checkpoints::open("folder/checkpoints")?;
    Ok(error)
}

/// The run that goes on sets a state that the run that was saved did not have.
///
/// Mend: set the same states.
fn an_own_state_is_missing(device: &Device) -> Result<Error> {
    fit(&Trainer::new(1)?.resume("states"), device)?;
    let with_state = Trainer::new(1)?.resume("states").state("scaler", || Ok(StateDict::new()), |_| Ok(()));
    let error = fit(&with_state, device).unwrap_err();

    fit(&Trainer::new(1)?.resume("states"), device)?;
    Ok(error)
}
