"""The commands about models as such: is the state carried, which classes, in which format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lengthen.cli.configuration import prepare
from lengthen.cli.options import DEFAULTS, Common, device_of
from lengthen.cli.output import Progress, print_json, show
from lengthen.cli.run_folders import run_folder, write_page
from lengthen.errors import InputError, ParityError

if TYPE_CHECKING:
    from lengthen.results import CheckResult


def check(*models: str, as_is: bool = False, markdown: bool = False, common: Common = DEFAULTS) -> int:
    """Check that a model's recurrent state is really carried, exactly and with gradients.

    Example: lengthen check ./my-mamba2

    Args:
        models: Directories or hub names. With --as-is and none, tiny random models of every class in transformers.
        as_is: Judge the library's own path through its own cache, without lengthen.
        markdown: With --as-is, print the findings as the page docs/compatibility.md.
    """
    prepare(common)
    from lengthen.models import check as run
    from lengthen.models import check_library_path, compatibility_page, load_library_model, survey

    if not models and not as_is:
        raise InputError("No model was given; name a directory or hub name, or use --as-is for a survey.")
    results: list[CheckResult] = []
    with run_folder(common.out, "check", common):
        if not models:
            results = survey(seed=common.seed)
        for name in models:
            model = load_library_model(name, dtype=common.dtype, device=device_of(common))
            judge = check_library_path if as_is else run
            results.append(judge(model, name=name, seed=common.seed))
        if common.out is not None:
            for i, result in enumerate(results):
                result.save(common.out / "results" / (f"check-{i}.json" if len(results) > 1 else "check.json"))
            write_page(common.out)
    if common.json:
        single = len(results) == 1 and not as_is
        print_json(results[0].to_json() if single else {"models": [r.to_json() for r in results]})
    elif as_is and markdown:
        print(compatibility_page(results), end="")
    elif as_is:
        from lengthen.reporting import terminal

        terminal.survey(results)
    else:
        from lengthen.reporting import terminal

        for result in results:
            terminal.checks(result)
    return ParityError.exit_code if models and not all(r.passed for r in results) else 0


def convert(
    source: str,
    destination: Path,
    *,
    to: Literal["transformers", "mamba_ssm", "fla"] = "transformers",
    common: Common = DEFAULTS,
) -> None:
    """Write a Mamba or Mamba-2 model in another library's checkpoint format, with the same weights to the bit.

    Example: lengthen convert ./repaired/model ./for-mamba-ssm --to mamba_ssm

    Args:
        source: A directory or hub name, in any of the formats.
        destination: The directory to write; one that exists is refused, or with --overwrite replaced.
        to: The format to write.
    """
    if common.out is not None:
        raise InputError(f"The checkpoint is written to {destination}; do without --out.")
    prepare(common)
    from lengthen.models import convert as run

    result = run(source, destination, to=to, overwrite=common.overwrite, seed=common.seed)
    show(result, common, None)


def families(*, verify: bool = False, common: Common = DEFAULTS) -> int:
    """List the model classes that lengthen can wrap, their kernels, and what was verified of each.

    Example: lengthen families --verify

    Args:
        verify: Build every class of the installed libraries small and run the parity gate on it, instead of printing
            what was found when this version was made.
    """
    if not verify:
        if common.out is not None:
            raise InputError("--out keeps what --verify finds; give both, or neither.")
        from importlib.resources import files

        from lengthen.results import SupportTable

        result = SupportTable.load(Path(str(files("lengthen") / "assets" / "families.json")))
        show(result, common, None)
        return 0
    prepare(common)
    from lengthen.models.verification import verify_support

    with run_folder(common.out, "families", common), Progress(common) as progress:
        result = verify_support(seed=common.seed, progress=progress.single("families"))
        if common.out is not None:
            result.save(common.out / "results" / "families.json")
    show(result, common, None)
    return 0 if all(all(row.verified.values()) for row in result.classes) else ParityError.exit_code
