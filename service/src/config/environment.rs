//! Parses arguments and variables into a typed configuration, or returns all of its faults.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::ffi::{OsStr, OsString};

use clap::builder::{Resettable, ValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, Parser};

use super::fault::{Fault, Faults};
#[cfg(feature = "kafka")]
use super::kafka_properties;
use super::secret_file;
use super::variables::{PREFIX, SECRETS, VARIABLES, unknown};

/// Why a configuration could not be read.
#[derive(Debug)]
pub(super) enum ReadError {
    /// The command line is invalid, or asks for help or the version.
    Usage(clap::Error),
    /// Variables are invalid or missing.
    Faults(Faults),
}

/// Asserts that [`VARIABLES`] contains each `HOPLINE_` variable of a configuration; for a test of each `Config`.
///
/// # Panics
/// When one is missing, or a secret lacks `hide_env_values`.
pub fn assert_listed<C: CommandFactory>() {
    let command = C::command();
    command.clone().debug_assert();
    for arg in settings(&command, None) {
        let Some(name) = variable(arg).filter(|name| name.starts_with(PREFIX)) else {
            continue;
        };
        assert!(VARIABLES.contains(&name), "{name} is missing in config::VARIABLES");
        assert_eq!(
            SECRETS.contains(&name),
            arg.is_hide_env_values_set(),
            "{name} must have hide_env_values if it is a secret, and only then"
        );
    }
}

/// Reads a configuration from arguments, of which the first is the program's name, and variables.
pub(super) fn read<C: Parser>(
    arguments: impl IntoIterator<Item = OsString>,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<C, ReadError> {
    let given: Vec<OsString> = arguments.into_iter().collect();
    let variables: BTreeMap<OsString, OsString> =
        variables.into_iter().filter(|(_, value)| !value.is_empty()).collect();

    // Accepts any value and requires none, so only an invalid command line fails here.
    let from_command_line =
        match adjust(C::command(), &|arg| without_rules(without_env(arg))).try_get_matches_from(&given) {
            Ok(matches) => matches,
            Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
                // The unmodified command shows variables and possible values.
                return Err(ReadError::Usage(match C::command().try_get_matches_from(&given) {
                    Err(shown) => shown,
                    Ok(_) => error,
                }));
            }
            Err(error) => return Err(ReadError::Usage(error)),
        };

    let command = C::command();
    let mut faults = Vec::new();
    let mut values = BTreeMap::new();
    for arg in settings(&command, Some(&from_command_line)) {
        let Some(name) = variable(arg) else { continue };
        match value(arg, name, &variables) {
            Err(fault) => faults.push(fault),
            Ok(Some(value)) => match fault(arg, &value) {
                Some(message) => faults.push(Fault::new(name, message)),
                None => {
                    values.insert(name.to_owned(), value);
                }
            },
            Ok(None) if arg.is_required_set() && arg.get_default_values().is_empty() => {
                faults.push(Fault::new(name, "required but not set"));
            }
            Ok(None) => {}
        }
    }
    faults.retain(|fault| !is_on_command_line(&command, &from_command_line, &fault.variable));
    faults.extend(variables.keys().filter_map(|name| unknown(name)));
    #[cfg(feature = "kafka")]
    if settings(&command, Some(&from_command_line))
        .iter()
        .any(|arg| variable(arg) == Some(kafka_properties::BROKERS))
    {
        faults.extend(kafka_properties::property_faults(&variables));
    }
    if !faults.is_empty() {
        return Err(ReadError::Faults(Faults(faults)));
    }

    let command = adjust(C::command(), &|arg| match variable(&arg).and_then(|name| values.get(name)) {
        Some(value) => without_env(arg).required(false).default_value(value.clone()),
        None => without_env(arg),
    });
    command
        .try_get_matches_from(&given)
        .and_then(|mut matches| C::from_arg_matches_mut(&mut matches))
        .map_err(|error| ReadError::Usage(error.format(&mut C::command())))
}

/// Returns the arguments of a command and of its subcommands: the chosen one with `chosen`, else all.
fn settings<'a>(command: &'a Command, chosen: Option<&ArgMatches>) -> Vec<&'a Arg> {
    let mut found: Vec<&Arg> = command.get_arguments().collect();
    match chosen {
        None => found.extend(command.get_subcommands().flat_map(|inner| settings(inner, None))),
        Some(matches) => {
            if let Some((name, inner)) = matches.subcommand()
                && let Some(subcommand) = command.find_subcommand(name)
            {
                found.extend(settings(subcommand, Some(inner)));
            }
        }
    }
    found
}

/// Changes each argument of a command and of its subcommands.
fn adjust(command: Command, change: &dyn Fn(Arg) -> Arg) -> Command {
    command.mut_args(change).mut_subcommands(|subcommand| adjust(subcommand, change))
}

/// Stops clap from reading the argument's variable: [`read`] takes variables as a parameter.
fn without_env(arg: Arg) -> Arg {
    if arg.get_env().is_some() { arg.env(Resettable::Reset) } else { arg }
}

/// Makes an argument optional, with any value.
fn without_rules(arg: Arg) -> Arg {
    let arg = arg.required(false);
    if arg.get_action().takes_values() {
        arg.default_value(Resettable::Reset).value_parser(ValueParser::os_string())
    } else {
        arg
    }
}

fn variable(arg: &Arg) -> Option<&str> {
    arg.get_env().and_then(OsStr::to_str)
}

fn is_on_command_line(command: &Command, matches: &ArgMatches, name: &str) -> bool {
    let here = command
        .get_arguments()
        .filter(|arg| variable(arg) == Some(name))
        .any(|arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine));
    here || matches.subcommand().is_some_and(|(chosen, inner)| {
        command.find_subcommand(chosen).is_some_and(|subcommand| is_on_command_line(subcommand, inner, name))
    })
}

/// Returns the value of a variable, or for a secret the content of the file that `<variable>_FILE` names.
fn value(arg: &Arg, name: &str, variables: &BTreeMap<OsString, OsString>) -> Result<Option<OsString>, Fault> {
    let direct = variables.get(OsStr::new(name));
    let file = secret_file::of(name, variables).filter(|_| arg.is_hide_env_values_set());
    match (direct, file) {
        (Some(_), Some(_)) => Err(secret_file::set_twice(name)),
        (None, Some((variable, path))) => match secret_file::read(path) {
            Ok(content) => Ok(Some(content.into())),
            Err(reason) => Err(Fault::new(variable, reason)),
        },
        (direct, None) => Ok(direct.cloned()),
    }
}

/// Returns the error of one argument's value, parsed separately from the other arguments.
fn fault(arg: &Arg, value: &OsStr) -> Option<String> {
    let mut alone =
        Arg::new("value").long("value").action(ArgAction::Set).value_parser(arg.get_value_parser().clone());
    if let Some(delimiter) = arg.get_value_delimiter() {
        alone = alone.value_delimiter(delimiter);
    }
    let mut text = OsString::from("--value=");
    text.push(value);
    let error = Command::new("value").no_binary_name(true).arg(alone).try_get_matches_from([text]).err()?;
    let reason = match (error.source(), error.get(ContextKind::ValidValue)) {
        (Some(source), _) => source.to_string(),
        (None, Some(ContextValue::Strings(valid))) => format!("expected one of {}", valid.join(", ")),
        (None, _) => "cannot be parsed".to_owned(),
    };
    let value = value.to_string_lossy();
    Some(if !arg.is_hide_env_values_set() {
        format!("invalid value '{value}': {reason}")
    } else if reason.contains(&*value) {
        "invalid value (not shown)".to_owned()
    } else {
        format!("invalid value (not shown): {reason}")
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::super::KeyRing;
    use super::*;
    use crate::telemetry::LogFormat;

    /// A configuration with a setting of every kind.
    #[derive(Debug, Parser)]
    #[command(name = "sample", version = "1.2.3")]
    struct Sample {
        #[arg(long, env = "HOPLINE_DRAIN_SECONDS", default_value = "20", value_parser = crate::config::seconds)]
        drain: Duration,
        #[arg(long, env = "HOPLINE_LOG_FORMAT", value_enum, default_value = "auto")]
        format: LogFormat,
        #[arg(long, env = "KAFKA_BROKERS", value_delimiter = ',', required = true)]
        brokers: Vec<String>,
        #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
        database: String,
        #[arg(long, env = "HOPLINE_SECRET_KEYS", hide_env_values = true)]
        keys: KeyRing,
        #[command(subcommand)]
        command: Option<Sub>,
    }

    #[derive(Debug, clap::Subcommand)]
    enum Sub {
        Migrate {
            #[arg(long, env = "HOPLINE_MAX_CONNECTIONS")]
            count: u32,
        },
    }

    const KEYS: &str = "1:0101010101010101010101010101010101010101010101010101010101010101";
    const WORKING: &[(&str, &str)] =
        &[("KAFKA_BROKERS", "a:1,b:2"), ("DATABASE_URL", "postgres://"), ("HOPLINE_SECRET_KEYS", KEYS)];

    fn read(arguments: &[&str], variables: &[(&str, &str)]) -> Result<Sample, ReadError> {
        super::read(
            std::iter::once("sample").chain(arguments.iter().copied()).map(OsString::from),
            variables.iter().map(|(name, value)| (name.into(), value.into())),
        )
    }

    fn faults(arguments: &[&str], variables: &[(&str, &str)]) -> String {
        match read(arguments, variables) {
            Err(ReadError::Faults(faults)) => faults.to_string(),
            other => panic!("expected faults, found {other:?}"),
        }
    }

    #[test]
    fn a_configuration_is_read_from_variables() {
        let sample = read(&[], &[WORKING, &[("HOPLINE_DRAIN_SECONDS", "3")]].concat()).unwrap();
        assert_eq!(sample.drain, Duration::from_secs(3));
        assert_eq!(sample.format, LogFormat::Auto);
        assert_eq!(sample.brokers, ["a:1", "b:2"]);
        assert_eq!(sample.keys.current().0, 1);
    }

    #[test]
    fn arguments_take_precedence_over_variables_and_faults() {
        let variables = [WORKING, &[("HOPLINE_DRAIN_SECONDS", "soon")]].concat();
        let sample = read(&["--drain", "4", "--database=mine"], &variables).unwrap();
        assert_eq!(sample.drain, Duration::from_secs(4));
        assert_eq!(sample.database, "mine");
    }

    #[test]
    fn every_fault_is_reported_with_its_variable() {
        let report = faults(
            &[],
            &[
                ("HOPLINE_DRAIN_SECONDS", "soon"),
                ("HOPLINE_LOG_FORMAT", "xml"),
                ("HOPLINE_SECRET_KEYS", "1:hunter2"),
                ("HOPLINE_DRAIN_SECOND", "1"),
                ("HOPLINE_DATABASE_URL", "1"),
                ("HOPLINE_ZZZ", "1"),
                ("UNRELATED", "1"),
            ],
        );
        assert_eq!(
            report.lines().collect::<Vec<_>>(),
            [
                "HOPLINE_DRAIN_SECONDS: invalid value 'soon': expected seconds, more than 0 and at most 86400",
                "HOPLINE_LOG_FORMAT: invalid value 'xml': expected one of auto, json, text",
                "KAFKA_BROKERS: required but not set",
                "DATABASE_URL: required but not set",
                "HOPLINE_SECRET_KEYS: invalid value (not shown): a key must be 64 hexadecimal digits",
                "HOPLINE_DATABASE_URL: unknown variable",
                "HOPLINE_DRAIN_SECOND: unknown variable, did you mean HOPLINE_DRAIN_SECONDS?",
                "HOPLINE_ZZZ: unknown variable",
            ]
        );
    }

    #[test]
    fn an_empty_variable_counts_as_not_set() {
        let variables = [WORKING, &[("HOPLINE_DRAIN_SECONDS", ""), ("HOPLINE_UNKNOWN", "")]].concat();
        assert_eq!(read(&[], &variables).unwrap().drain, Duration::from_secs(20));
        let variables = [&WORKING[1..], &[("KAFKA_BROKERS", "")]].concat();
        assert_eq!(faults(&[], &variables), "KAFKA_BROKERS: required but not set");
    }

    #[test]
    fn variables_of_other_processes_are_accepted() {
        let others: Vec<_> = VARIABLES
            .iter()
            .filter(|name| {
                !["HOPLINE_DRAIN_SECONDS", "HOPLINE_LOG_FORMAT", "HOPLINE_SECRET_KEYS"].contains(name)
            })
            .map(|name| (*name, "whatever"))
            .chain([("HOPLINE_VISITOR_KEY_FILE", "/secret")])
            .collect();
        assert!(read(&[], &[WORKING, &others].concat()).is_ok());
    }

    #[test]
    fn only_a_secret_may_be_in_a_file() {
        let path = std::env::temp_dir().join(format!("hopline-secret-{}", std::process::id()));
        fs::write(&path, format!("{KEYS}\n")).unwrap();
        let file = path.to_str().unwrap();
        let sample = read(&[], &[&WORKING[..2], &[("HOPLINE_SECRET_KEYS_FILE", file)]].concat());
        let both = faults(&[], &[WORKING, &[("HOPLINE_SECRET_KEYS_FILE", file)]].concat());
        fs::remove_file(&path).unwrap();
        let missing = faults(&[], &[&WORKING[..2], &[("HOPLINE_SECRET_KEYS_FILE", file)]].concat());
        let not_secret = faults(&[], &[WORKING, &[("HOPLINE_LOG_FORMAT_FILE", file)]].concat());

        assert_eq!(sample.unwrap().keys.current().1.bytes(), &[1; 32]);
        assert_eq!(both, "HOPLINE_SECRET_KEYS: set together with HOPLINE_SECRET_KEYS_FILE; keep one of them");
        assert!(missing.starts_with("HOPLINE_SECRET_KEYS_FILE: cannot read "), "{missing}");
        assert!(not_secret.contains("unknown variable"), "{not_secret}");
    }

    #[test]
    fn only_the_chosen_subcommands_settings_are_checked() {
        assert!(read(&[], WORKING).unwrap().command.is_none());
        assert_eq!(faults(&["migrate"], WORKING), "HOPLINE_MAX_CONNECTIONS: required but not set");
        let variables = [WORKING, &[("HOPLINE_MAX_CONNECTIONS", "7")]].concat();
        let Some(Sub::Migrate { count }) = read(&["migrate"], &variables).unwrap().command else {
            panic!("no subcommand");
        };
        assert_eq!(count, 7);
    }

    #[test]
    fn clap_reports_usage_errors_and_help() {
        for (arguments, kind) in [
            (&["--nonsense"][..], ErrorKind::UnknownArgument),
            (&["--drain", "soon", "--database=x"], ErrorKind::ValueValidation),
            (&["--help"], ErrorKind::DisplayHelp),
            (&["--version"], ErrorKind::DisplayVersion),
        ] {
            match read(arguments, WORKING) {
                Err(ReadError::Usage(error)) => assert_eq!(error.kind(), kind),
                other => panic!("{arguments:?}: {other:?}"),
            }
        }
        let Err(ReadError::Usage(help)) = read(&["--help"], &[]) else { panic!("no help") };
        assert!(help.to_string().contains("[env: HOPLINE_DRAIN_SECONDS="), "{help}");
    }

    #[test]
    fn the_list_of_variables_covers_the_sample() {
        assert_listed::<Sample>();
    }
}
