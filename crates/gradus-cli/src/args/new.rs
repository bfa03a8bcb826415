//! The options of `gradus new`.

use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(crate) struct NewArgs {
    /// The folder of the project, which must not exist yet; its last part is the name of the project
    #[arg(value_name = "NAME")]
    pub(crate) folder: PathBuf,

    /// A folder with the crate gradus, instead of its repository
    #[arg(long, value_name = "DIR", hide = true)]
    pub(crate) gradus: Option<PathBuf>,

    /// Print one JSON object as the last line
    #[arg(long)]
    pub(crate) json: bool,
}
