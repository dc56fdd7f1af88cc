"""The command line. Heavy modules are imported only inside commands, so that `--help` is fast."""

from __future__ import annotations

import copy
import functools
import os
import sys
import traceback
from typing import Annotated

import typer
import typer.core
import typer.models

from servesim import __version__
from servesim.cli import completion
from servesim.cli.accuracy import ACCURACY_EXAMPLES, accuracy
from servesim.cli.calibrate import calibrate_app
from servesim.cli.doctor import DOCTOR_EXAMPLES, doctor
from servesim.cli.engines import ENGINES_EXAMPLES, engines
from servesim.cli.experiments import register as register_experiments
from servesim.cli.explore import EXPLORE_EXAMPLES, explore
from servesim.cli.figures import FIGURES_EXAMPLES, figures
from servesim.cli.help import with_help_all
from servesim.cli.known import GPUS_EXAMPLES, MODELS_EXAMPLES, SETTINGS_EXAMPLES, gpus, models, print_settings, settings
from servesim.cli.lecture import LECTURE_EXAMPLES, lecture
from servesim.cli.measure import MEASURE_EXAMPLES, measure
from servesim.cli.options import ListingCommand, RunCommand, ScenarioCommand, TrustCommand
from servesim.cli.others import add_commands
from servesim.cli.parts import help_of
from servesim.cli.play import PLAY_EXAMPLES, play
from servesim.cli.policies import POLICIES_EXAMPLES, policies
from servesim.cli.recommend import register as register_recommend
from servesim.cli.report import EXPORT_EXAMPLES, REPORT_EXAMPLES, export, report
from servesim.cli.roofline import ROOFLINE_EXAMPLES, roofline
from servesim.cli.run import RUN_EXAMPLES, run
from servesim.cli.schema import SCHEMA_EXAMPLES, schema
from servesim.cli.serve import SERVE_EXAMPLES, serve
from servesim.cli.size import SIZE_EXAMPLES, size
from servesim.cli.trace import trace_app
from servesim.cli.validate import validate
from servesim.cli.why import WHY_EXAMPLES, why
from servesim.engine import compiled
from servesim.errors import Interrupted, PolicyError, UserError
from servesim.plugins.trust import trusting

VALIDATE_EXAMPLES = """
\b
Examples:
  servesim validate recorded/ --json errors.json
  servesim validate run.csv --model qwen3-14b --gpu h100 --host my_terms.yaml
"""

ROOT_EXAMPLES = """
\b
Examples:
  servesim run --trace synth:rate=5 --model llama-3.1-8b --gpu h200

`servesim COMMAND --help` has examples of every command.
"""

REPORT_BUGS = "please report it with the lines above to the maintainers named in CITATION.cff"

app = typer.Typer(
    name="servesim",
    help="Simulate LLM inference serving: replay a request trace through pluggable policies at measured kernel costs.",
    epilog=ROOT_EXAMPLES,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # brackets in help are not markup, nothing is truncated, and help is faster
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    show_completion: Annotated[
        str | None,
        typer.Option("--show-completion", metavar="SHELL", help="Print a completion script for SHELL."),
    ] = None,
) -> None:
    if version:
        typer.echo(f"servesim {__version__}{' (compiled)' if compiled() else ''}")
        raise typer.Exit
    if show_completion is not None:
        typer.echo(completion.script(show_completion))
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command(epilog=RUN_EXAMPLES, cls=RunCommand)(run)
app.add_typer(trace_app, name="trace")
app.add_typer(calibrate_app, name="calibrate")
app.command(epilog=VALIDATE_EXAMPLES, cls=TrustCommand)(validate)
app.command(epilog=ACCURACY_EXAMPLES)(accuracy)
app.command(epilog=MEASURE_EXAMPLES)(measure)
app.command(epilog=POLICIES_EXAMPLES)(policies)
app.command(epilog=ENGINES_EXAMPLES)(engines)
app.command(epilog=SETTINGS_EXAMPLES)(settings)
app.command(epilog=FIGURES_EXAMPLES)(figures)
app.command(epilog=MODELS_EXAMPLES)(models)
app.command(epilog=GPUS_EXAMPLES)(gpus)
app.command(epilog=SCHEMA_EXAMPLES)(schema)
app.command(epilog=DOCTOR_EXAMPLES)(doctor)
app.command(epilog=SIZE_EXAMPLES)(size)
app.command(epilog=ROOFLINE_EXAMPLES, cls=TrustCommand)(roofline)
register_experiments(app)
register_recommend(app)
app.command(epilog=REPORT_EXAMPLES, cls=TrustCommand)(report)
app.command(epilog=EXPLORE_EXAMPLES, cls=ScenarioCommand)(explore)
app.command(epilog=SERVE_EXAMPLES, cls=ScenarioCommand)(serve)
app.command(epilog=PLAY_EXAMPLES, cls=ListingCommand)(play)
app.command(epilog=LECTURE_EXAMPLES)(lecture)
app.command(epilog=EXPORT_EXAMPLES, cls=TrustCommand)(export)
app.command(epilog=WHY_EXAMPLES, cls=TrustCommand)(why)
add_commands({"": app, "calibrate": calibrate_app, "trace": trace_app})
with_help_all(app)


def main() -> None:
    """Run the command line and return its exit code. 0: done; 2: bad input; 1: a bug in servesim or a policy; 130:
    interrupted. Errors are one line on stderr, after a traceback if the bug is in servesim."""
    code = _guarded()
    if code == 130:
        # If the signal arrived while a string was being executed (as in an import of dataclasses), CPython kills itself
        # with that signal, whatever the exit code, even if the interrupt was handled.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _guarded() -> int:
    if sys.stdout is None:  # closed before the command began (`>&-`), so there is no reader
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # as long as the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    completing = completion.prepare()
    try:
        name = "servesim" if completing else None  # not argv[0], from which the variable's name would be derived
        words = completion.with_shell(sys.argv)[1:]
        if parts := help_of(words):
            print_settings(parts)
            return 0
        with trusting("--trust" in words, words):
            command = _command("" if completing else words[0] if words else "")
            code = command(words, prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except OSError as error:
        _silence_stdout()  # or the flush at exit would fail as well
        if isinstance(error, BrokenPipeError):
            return 0  # the reader closed the pipe
        return _complain(UserError(f"cannot write the output: {error.strerror}"), 2)
    except (UserError, typer.TyperException) as error:
        if completing:
            return 0  # an incomplete command line is not an error
        return _complain(error, 2)
    except SystemExit as error:
        if not isinstance(error.__context__, BrokenPipeError):
            raise
        _silence_stdout()
        return 0  # pipe closed inside a command
    except PolicyError as error:
        return _complain(error, 1)
    except Interrupted as error:
        typer.echo(f"interrupted: {error}", err=True)
        return 130
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except Exception:
        traceback.print_exc()
        typer.echo(f"error: a bug in servesim {__version__}, not in your input: {REPORT_BUGS}", err=True)
        return 1
    if code == 130:
        typer.echo("interrupted: nothing was written", err=True)
    return code if isinstance(code, int) else 0


@functools.lru_cache(64)
def _command(name: str) -> typer.core.TyperGroup:
    """Build only the command or group of that name, or all of them if none has that name; each takes 2 ms to build."""
    only = copy.copy(app)
    only.registered_commands = [each for each in app.registered_commands if _name(each) == name]
    only.registered_groups = [each for each in app.registered_groups if each.name == name]
    return typer.main.get_group(only if only.registered_commands or only.registered_groups else app)


def _name(command: typer.models.CommandInfo) -> str:
    return command.name or typer.main.get_command_name(getattr(command.callback, "__name__", ""))


def _silence_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(error: Exception, code: int) -> int:
    format_message = getattr(error, "format_message", error.__str__)
    if line := " ".join(format_message().split()):  # empty if help was shown instead
        typer.echo(f"error: {line}", err=True)
    return code
