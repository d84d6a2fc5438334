"""Where credentials are found, and that nobody asks a metadata address for them unless told to."""

from __future__ import annotations

import errno
import pickle
from typing import TYPE_CHECKING, Any

import pytest

from shard_format._credentials import ProfileCredentials, find_credentials
from shard_format.errors import AccessDenied, InvalidArgument
from shard_format.remote import open_url, upload
from tests.stores.fault_proxy import status

if TYPE_CHECKING:
    from pathlib import Path

    from tests.stores.fault_proxy import FaultProxy
    from tests.stores.servers import Bucket

KEYS = "aws_access_key_id = {0}\naws_secret_access_key = secret-{0}\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home of a user of AWS with two profiles."""
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(
        f"[default]\n{KEYS.format('first')}\n[lab]\n{KEYS.format('second')}aws_session_token = token%\n"
    )
    (tmp_path / ".aws" / "config").write_text(
        "[default]\nregion = eu-west-1\n[profile lab]\nregion = eu-west-2\nendpoint_url = http://127.0.0.1:9\n"
        "[profile login]\nsso_session = x\n"
    )
    return tmp_path


class TestS3:
    """What the AWS tools would use."""

    @pytest.mark.usefixtures("home")
    def test_the_default_profile_gives_keys_and_region(self) -> None:
        found = find_credentials("s3://bucket", {"allow_http": True})
        keys = found.pop("credential_provider")()
        assert found == {"allow_http": True, "region": "eu-west-1"}
        assert (keys["access_key_id"], keys["secret_access_key"]) == ("first", "secret-first")
        assert (keys["token"], keys["expires_at"]) == (None, None)

    @pytest.mark.usefixtures("home")
    def test_a_named_profile_gives_its_token_and_endpoint(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_PROFILE", "lab")
        found = find_credentials("s3://bucket", {})
        assert (found["region"], found["endpoint"]) == ("eu-west-2", "http://127.0.0.1:9")
        assert found["credential_provider"]()["token"] == "token%"
        given = {"aws_region": "x", "ENDPOINT_URL": "http://127.0.0.1:8"}
        assert find_credentials("s3://bucket", given).keys() - given.keys() == {
            "credential_provider"
        }

    def test_keys_that_expire_are_read_again(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_PROFILE", "lab")
        provider = pickle.loads(pickle.dumps(find_credentials("s3://b", {})["credential_provider"]))
        assert provider()["expires_at"].tzinfo is not None
        (home / ".aws" / "credentials").write_text(
            f"[lab]\n{KEYS.format('renewed')}aws_session_token = new\n"
        )
        assert (provider()["access_key_id"], provider()["token"]) == ("renewed", "new")

    @pytest.mark.parametrize(
        ("variables", "options"),
        [
            ({"AWS_ACCESS_KEY_ID": "a"}, {}),
            ({"AWS_WEB_IDENTITY_TOKEN_FILE": "/token", "AWS_ROLE_ARN": "arn"}, {}),
            ({"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/x"}, {}),
            ({"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1/x"}, {}),
            ({"AWS_SKIP_SIGNATURE": "true"}, {}),
            ({}, {"access_key_id": "a", "secret_access_key": "b"}),
            ({}, {"AWS_ACCESS_KEY_ID": "a"}),
            ({}, {"config": {"aws_access_key_id": "a"}}),
            ({}, {"skip_signature": True}),
            ({}, {"credential_provider": dict}),
        ],
        ids=str,
    )
    @pytest.mark.usefixtures("home")
    def test_what_obstore_finds_itself_is_left_to_it(
        self, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], options: dict[str, Any]
    ) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert find_credentials("s3://bucket", options) == options

    def test_our_own_options_are_not_passed_on(self) -> None:
        assert find_credentials("s3://b", {"anonymous": True}) == {"skip_signature": True}
        assert find_credentials("s3://b", {"use_metadata_service": True}) == {}

    @pytest.mark.usefixtures("home")
    def test_a_profile_without_keys_says_what_it_has(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_PROFILE", "login")
        with pytest.raises(InvalidArgument, match="Boto3CredentialProvider"):
            find_credentials("s3://bucket", {})

    def test_a_damaged_file_is_named_without_its_lines(self, home: Path) -> None:
        (home / ".aws" / "credentials").write_text("aws_secret_access_key = hidden\n")
        with pytest.raises(InvalidArgument, match=r"\.aws/credentials") as caught:
            find_credentials("s3://bucket", {})
        assert "hidden" not in str(caught.value)

    def test_the_files_can_be_elsewhere(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "keys").write_text(f"[default]\n{KEYS.format('other')}")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
        assert ProfileCredentials("default")()["access_key_id"] == "other"


class TestOtherStores:
    """Google Cloud and Azure."""

    def test_the_file_of_gcloud_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for folder in (tmp_path / ".config" / "gcloud", tmp_path / "other"):
            folder.mkdir(parents=True)
            path = folder / "application_default_credentials.json"
            path.write_text("{}")
            found = find_credentials("gs://bucket", {})
            assert found == {"application_credentials": str(path)}
            monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "other"))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/key.json")
        assert find_credentials("gs://bucket", {}) == {}

    def test_azure_takes_the_names_of_its_own_tools(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "lab")
        monkeypatch.setenv("AZURE_STORAGE_KEY", "key")
        for url in ("az://container", "abfss://container@lab.dfs.core.windows.net"):
            assert find_credentials(url, {}) == {"account_name": "lab", "account_key": "key"}
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "other")
        assert find_credentials("az://container", {}) == {"account_name": "lab"}


class TestWithout:
    """No credentials."""

    @pytest.mark.parametrize(
        ("url", "way"),
        [
            ("s3://bucket/key", "AWS_ACCESS_KEY_ID"),
            ("gs://bucket/key", "GOOGLE_APPLICATION_CREDENTIALS"),
            ("az://bucket/key", "AZURE_STORAGE_ACCOUNT_KEY"),
        ],
    )
    def test_the_error_names_the_bucket_and_the_ways_out(self, url: str, way: str) -> None:
        with pytest.raises(AccessDenied) as caught:
            open_url(url, {})
        assert caught.value.errno == errno.EACCES
        assert f"no credentials found for {url.removesuffix('/key')}; " in str(caught.value)
        for part in (way, "anonymous", "use_metadata_service"):
            assert part in str(caught.value)
            assert part in str(caught.value.command)
        assert "--storage-option" in str(caught.value.command)

    def test_a_misspelled_option_is_seen(self) -> None:
        with pytest.raises(AccessDenied, match="only the options 'acces_key_id'") as caught:
            open_url("s3://bucket/key", {"acces_key_id": "hidden"})
        assert "hidden" not in str(caught.value)

    def test_the_metadata_address_is_asked_only_if_told_to(
        self, moto: Bucket, moto_proxy: FaultProxy
    ) -> None:
        options = {
            "endpoint": moto_proxy.url,
            "metadata_endpoint": moto_proxy.url,
            "allow_http": True,
            "retries": 0,
        }
        moto.put("key", b"content")
        moto_proxy.always = status(404)
        with pytest.raises(AccessDenied, match="no credentials found"):
            open_url("s3://bucket/key", options)
        assert moto_proxy.counted() == 0
        with pytest.raises(OSError, match="latest/api/token"):
            open_url("s3://bucket/key", {**options, "use_metadata_service": True})
        assert [request.path for request in moto_proxy.log] == ["/latest/api/token"]

    def test_anonymous_requests_have_no_signature(
        self, moto: Bucket, moto_proxy: FaultProxy
    ) -> None:
        options = {"endpoint": moto_proxy.url, "allow_http": True, "anonymous": True}
        with pytest.raises(AccessDenied):
            open_url(moto.put("private", b"content"), options)
        assert "authorization" not in moto_proxy.headers[0]

    @pytest.mark.parametrize("is_variable", [False, True])
    def test_anonymous_writes_to_google_ask_no_other_server_for_a_token(
        self,
        google: Bucket,
        moto_proxy: FaultProxy,
        tmp_path: Path,
        is_variable: bool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        url = google.put("public", b"content")
        options: dict[str, Any] = {"endpoint": moto_proxy.url, "allow_http": True}
        if is_variable:
            monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
        else:
            options["anonymous"] = True
        with pytest.raises(AccessDenied):
            open_url(url, options)
        assert "authorization" not in moto_proxy.headers[-1]
        (tmp_path / "file").write_bytes(b"other")
        moto_proxy.always = status(401)
        with pytest.raises(AccessDenied):
            upload(str(tmp_path / "file"), url, options)
        assert moto_proxy.log[-1].method == "PUT"


@pytest.mark.parametrize("store", ["moto", "versitygw"])
def test_a_profile_signs_the_requests(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """versitygw refuses a wrong signature; moto believes anything."""
    bucket: Bucket = request.getfixturevalue(store)
    url = bucket.put("signed", b"content")
    (tmp_path / ".aws").mkdir()
    keys = tmp_path / ".aws" / "credentials"
    secret = bucket.options["secret_access_key"]
    keys.write_text(
        f"[default]\naws_access_key_id = testing\naws_secret_access_key = {secret}\nregion = us-east-1\n"
        f"endpoint_url = {bucket.endpoint}\n"
    )
    source = open_url(url, {"allow_http": True})
    assert source.read_at(0, 7) == b"content"
    if store == "versitygw":
        with pytest.raises(AccessDenied):
            open_url(url, {**bucket.options, "secret_access_key": "wrong"})
