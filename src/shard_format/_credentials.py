"""Credentials for object stores, from where the tools of each store keep them.

obstore reads only environment variables, and asks the metadata address of the machine if it finds nothing there. Outside a
cloud that address does not answer, so `find_credentials` looks first: into the options, the environment and the usual files.
"""

from __future__ import annotations

import errno
import os
import re
from configparser import ConfigParser, Error
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from shard_format.errors import InvalidArgument, RemoteDenied

if TYPE_CHECKING:
    from collections.abc import Mapping

# obstore asks again when five minutes are left.
_REREAD_AFTER: Final = timedelta(minutes=10)
_PREFIXES: Final = {"s3": "aws_", "gs": "google_", "az": "azure_"}
_ENOUGH: Final = {
    "s3": r"access_key_id|web_identity_token_file|container_credentials_(relative|full)_uri",
    "gs": r"service_account(_path|_key)?|application_credentials|bearer_token",
    "az": r"(storage_)?(account_key|access_key|master_key|sas_key|sas_token|token|client_secret|use_emulator)|"
    r"bearer_token|federated_token_file|use_azure_cli|identity_endpoint|msi_endpoint",
}
"""What is enough to sign requests: options of obstore, and variables with the prefix of the store before them."""
_WAYS: Final = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile of ~/.aws/credentials in AWS_PROFILE",
    "gs": "run gcloud auth application-default login, or name a key file in GOOGLE_APPLICATION_CREDENTIALS",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
_OPTIONS: Final = {
    "s3": ("access_key_id", "secret_access_key"),
    "gs": ("service_account_path",),
    "az": ("account_name", "account_key"),
}
"""What can be passed instead."""


def find_credentials(url: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options for `obstore.store.from_url`, with credentials where obstore would not find them.

    Args:
        url: of a bucket, or of an object in it.
        options: obstore's options, and two of our own: `anonymous` sends requests without a signature,
            `use_metadata_service` lets obstore ask the metadata address of the machine.

    Raises:
        RemoteDenied: no credentials were found.
        InvalidArgument: the files of the AWS tools cannot be used.
    """
    scheme = url.partition("://")[0].lower()
    store = {"abfs": "az", "abfss": "az"}.get(scheme, scheme)
    filled = dict(options)
    asks_metadata = filled.pop("use_metadata_service", False)
    if filled.pop("anonymous", False):
        filled["skip_signature"] = True
    given = _plain_names(store, {**filled, **(filled.get("config") or {})})
    known = {**_plain_names(store, os.environ, only_prefixed=True), **given}
    is_unsigned = str(known.get("skip_signature", "")).lower() in ("true", "1", "yes", "on", "y")
    if is_unsigned or asks_metadata or "credential_provider" in known:
        if is_unsigned and store == "gs":
            # obstore signs writes even so, and would ask the metadata address for a token.
            filled.setdefault("credential_provider", _no_token)
        return filled
    if store == "az" and "storage_account" in known:  # as Azure's own tools name it
        filled.setdefault("account_name", known["storage_account"])
    if any(re.fullmatch(_ENOUGH[store], name) for name, value in known.items() if value):
        return filled
    found: dict[str, Any] = {}
    if store == "s3":
        found = _from_profile(known)
    elif store == "gs":
        folder = os.environ.get("CLOUDSDK_CONFIG") or os.path.expanduser("~/.config/gcloud")
        path = os.path.join(folder, "application_default_credentials.json")
        found = {"application_credentials": path} if os.path.exists(path) else {}
    elif "storage_key" in known:
        found = {"account_key": known["storage_key"]}
    if not found:
        raise _without_credentials(f"{scheme}://{urlsplit(url).netloc}", store, options)
    return {**filled, **found}


def _without_credentials(bucket: str, store: str, options: Mapping[str, Any]) -> RemoteDenied:
    way, keys = _WAYS[store], _OPTIONS[store]
    in_python = ", ".join(f"{key!r}: …" for key in keys)
    in_words = " ".join(f"--storage-option {key}=…" for key in keys)
    error = RemoteDenied(
        f"no credentials found for {bucket}",
        found=f"only the options {', '.join(map(repr, options))}" if options else None,
        hint=f"{way}, or pass storage_options={{{in_python}}}; for a public bucket pass 'anonymous': True, "
        "on a machine in the cloud 'use_metadata_service': True",
        command=f"{way}, or give {in_words}; for a public bucket give --storage-option anonymous=true, "
        "on a machine in the cloud --storage-option use_metadata_service=true",
    )
    error.errno, error.strerror = errno.EACCES, os.strerror(errno.EACCES)
    return error


def _no_token() -> dict[str, Any]:
    """What Google refuses, without a question to another server."""
    return {"token": "anonymous", "expires_at": None}


def _plain_names(
    store: str, values: Mapping[str, Any], *, only_prefixed: bool = False
) -> dict[str, Any]:
    """`AWS_REGION`, `aws_region` and `region` are the same for obstore."""
    prefix = _PREFIXES[store]
    lower = {name.lower(): value for name, value in values.items()}
    return {
        name.removeprefix(prefix): value
        for name, value in lower.items()
        if name.startswith(prefix) or not only_prefixed
    }


def _from_profile(known: Mapping[str, Any]) -> dict[str, Any]:
    """What the profile that AWS_PROFILE names says, or the default one."""
    provider = ProfileCredentials(known.get("profile") or "default")
    profile = provider.read()
    if "aws_access_key_id" not in profile:
        if profile.keys() & {"role_arn", "sso_session", "sso_start_url", "credential_process"}:
            raise InvalidArgument(
                f"the AWS profile {provider.profile!r} names a role, a login or a program instead of keys",
                hint="pass storage_options={'credential_provider': obstore.auth.boto3.Boto3CredentialProvider()}",
            )
        return {}
    found: dict[str, Any] = {"credential_provider": provider}
    if "region" in profile and not known.keys() & {"region", "default_region"}:
        found["region"] = profile["region"]
    if "endpoint_url" in profile and not any(name.startswith("endpoint") for name in known):
        found["endpoint"] = profile["endpoint_url"]
    return found


@dataclass(frozen=True)
class ProfileCredentials:
    """Gives obstore the keys of a profile. Keys that expire are read again from the file, which another tool renews."""

    profile: str

    def read(self) -> dict[str, str]:
        """All fields of the profile; `~/.aws/credentials` counts more than `~/.aws/config`."""
        name, fields = self.profile, dict[str, str]()
        config = os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config"
        own = os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials"
        for path, section in ((config, f"profile {name}"), (config, name), (own, name)):
            parser = ConfigParser(interpolation=None, default_section="")
            try:
                parser.read(os.path.expanduser(path), encoding="utf-8")
            except (Error, UnicodeDecodeError) as error:  # their messages show lines of the file
                reason = type(error).__name__
                raise InvalidArgument(
                    f"cannot read this file of the AWS tools: {reason}", path=path
                ) from None
            if parser.has_section(section):
                fields |= parser[section]
        return fields

    def __call__(self) -> dict[str, Any]:
        fields = self.read()
        token = fields.get("aws_session_token")
        return {
            "access_key_id": fields["aws_access_key_id"],
            "secret_access_key": fields["aws_secret_access_key"],
            "token": token,
            "expires_at": datetime.now(timezone.utc) + _REREAD_AFTER if token else None,
        }
