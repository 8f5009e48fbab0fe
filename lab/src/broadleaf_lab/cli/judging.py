"""Commands whose exit code is a verdict: only harm ends with 1, and only a wrong option with 2."""

from __future__ import annotations

import traceback
from typing import Any

import click

from broadleaf_lab.cli.terminal import explained, print_error
from broadleaf_lab.comparisons.exit_codes import COULD_NOT_RUN


class JudgingCommand(click.Command):
    """A command that ends with 3 if it could not reach a verdict, for whatever reason.

    A script that stops a merge at exit code 1 must not take a full disk for a slower program.
    """

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.UsageError, click.exceptions.Exit, BrokenPipeError):
            raise
        except (KeyboardInterrupt, click.Abort):
            print_error("interrupted")
        except click.ClickException as error:
            print_error(error.format_message())
        except Exception as error:
            if (message := explained(error)) is None:
                traceback.print_exc()
            else:
                print_error(message)
        ctx.exit(COULD_NOT_RUN)
