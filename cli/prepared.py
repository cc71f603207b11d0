"""Prepared: what `orca serve` finds out about its model before Ray starts, so that a wrong one is refused at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from services.errors import HubUnavailable, ModelError, SettingsError, UsageError
from services.settings.models import check_names
from services.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class Prepared:
    """`model` is pinned. `names` are those in the API, `pool` that of its pool. `defaults`: its sampling defaults in
    one line, empty if it has none. `has_chat`: whether it has a chat template, its own or one of the settings."""

    model: str
    names: tuple[str, ...]
    pool: str
    defaults: str
    has_chat: bool

    @classmethod
    def each(cls, settings: Settings, say: Callable[[str], None]) -> list[Prepared]:
        """Prepare each model of these settings. Raises UsageError as `of` does, and for two models or adapters with one
        name."""
        models = [cls.of(each, say) for each in settings.each]
        check_names([(one.model, one.names, one.pool) for one in models])
        taken = {name: f"the model {one.model}" for one in models for name in one.names}
        for each in settings.each:
            for module in each.lora_modules:
                if owner := taken.get(module.name):
                    raise UsageError(f"lora_modules: {module.name!r} is a name of {owner}; name the adapter otherwise")
                taken[module.name] = f"an adapter of {each.model}"
        return models

    @classmethod
    def of(cls, settings: Settings, say: Callable[[str], None]) -> Prepared:
        """Fetch or convert the model of these settings, and check what they ask of it.

        Raises UsageError for a model that cannot be served so, and HubUnavailable if the hub does not answer.
        """
        try:
            return cls._of(settings, say)
        except HubUnavailable:
            raise
        except (ModelError, SettingsError) as error:
            raise UsageError(str(error)) from error
        except OSError as error:
            raise UsageError(f"model={settings.model!r} cannot be read: {error}") from error

    @classmethod
    def _of(cls, settings: Settings, say: Callable[[str], None]) -> Prepared:
        from actors.engine_build import engine_settings, replaced_of
        from actors.replica import check_memory, pool_name
        from gateway.answer.reading import check_tool_parser
        from services.engine.startup.proof.ahead import start_ahead
        from services.models.convert import more_work
        from services.models.generation import SamplingDefaults
        from services.models.info import choose_length
        from services.models.pin import pin, pinned_info
        from services.models.quantization import check_quantization
        from services.models.replaced import resolve_replaced, with_replaced
        from services.text import ChatTemplate

        with more_work() as converters:
            model = pin(settings.model, settings.cache_dir, say)
            folder = resolve_replaced(model, replaced := replaced_of(settings), settings.cache_dir, say)
            if not settings.null_engine:
                start_ahead(folder, engine_settings(settings), converters)
        check_quantization(settings.quantization, model, folder)
        check_memory(settings, folder)
        info = with_replaced(pinned_info(model, folder, settings.cache_dir), folder, replaced)
        choose_length(info.max_model_len, settings.max_model_len)
        defaults = SamplingDefaults.load(folder, settings.generation_config, settings.override_generation_config)
        template = ChatTemplate.load(folder)
        check_tool_parser(settings.tool_call_parser, template is not None and template.uses_tools)
        names = settings.served_model_name or (folder.name,)
        _check_adapters(settings, folder)
        return cls(model, names, pool_name(settings, info), str(defaults), template is not None)


def _check_adapters(settings: Settings, folder: Path) -> None:
    """Raise UsageError for an adapter of the settings that is broken, or not for the model in `folder`."""
    if not settings.lora_modules:
        return
    from services.adapters import peft
    from services.models.linears import load_linears

    linears = load_linears(folder, settings.cache_dir)
    for module in settings.lora_modules:
        try:
            peft.check(module.path, linears, settings.max_lora_rank)
        except ValueError as error:
            raise UsageError(f"lora_modules: {module.name}: {error}") from None
