"""Which repository is meant, on which server, and with whose rights."""

from __future__ import annotations

import pytest

from metainfer.errors import InputError
from metainfer.forge.github.address import GitHubAddress, parse_address
from metainfer.forge.github.credentials import Credentials, find_credentials


def test_a_repository_of_the_public_server() -> None:
    address = parse_address("github:octo/engines", {})
    assert address == GitHubAddress("octo", "engines")
    assert address.git_url == "https://github.com/octo/engines.git"
    assert not address.is_local


def test_inside_actions_the_environment_says_which_repository_and_server() -> None:
    environment = {
        "GITHUB_REPOSITORY": "octo/engines",
        "GITHUB_API_URL": "https://ghe.example/api/v3",
        "GITHUB_SERVER_URL": "https://ghe.example",
    }
    address = parse_address("github:", environment)
    assert (address.slug, address.api) == ("octo/engines", "https://ghe.example/api/v3")
    assert address.git_url == "https://ghe.example/octo/engines.git"


def test_our_own_variables_come_before_those_of_actions() -> None:
    environment = {
        "GITHUB_API_URL": "https://api.github.com",
        "METAINFER_GITHUB_API": "http://localhost:4012/",
        "METAINFER_GITHUB_SERVER": "http://127.0.0.1:4013",
    }
    address = parse_address("github:octo/engines", environment)
    assert (address.api, address.server) == ("http://localhost:4012", "http://127.0.0.1:4013")
    assert address.is_local


@pytest.mark.parametrize(
    ("url", "api"),
    [
        ("https://github.com/octo/engines", "https://api.github.com"),
        ("https://ghe.example/octo/engines.git", "https://ghe.example/api/v3"),
    ],
)
def test_a_url_says_where_its_api_is(url: str, api: str) -> None:
    # What Actions set is about the repository that it runs in, not about the one that was named.
    address = parse_address(url, {"GITHUB_API_URL": "https://elsewhere.example"})
    assert (address.slug, address.api) == ("octo/engines", api)


@pytest.mark.parametrize(
    "value",
    [
        "github:",
        "github:octo",
        "github:octo/a/b",
        "github:../engines",
        "github:octo/..",
        "github:octo/a b",
        "github:octo/a\nb",
        "http://ghe.example/octo/engines",
        "https://token@github.com/octo/engines",
        "ftp://github.com/octo/engines",
        "https:///octo/engines",
    ],
)
def test_what_names_no_repository_or_would_leak_the_token_is_refused(value: str) -> None:
    with pytest.raises(InputError):
        parse_address(value, {})


def test_data_about_repositories_of_two_servers_lies_apart() -> None:
    here, there = parse_address("github:octo/engines", {}), parse_address("https://ghe.example:8443/octo/engines", {})
    assert here.folder == "github.com/octo/engines"
    assert there.folder == "ghe.example_8443/octo/engines"


def test_our_own_token_comes_before_an_app_and_an_app_before_that_of_actions() -> None:
    everything = {
        "METAINFER_GITHUB_TOKEN": "mine",
        "METAINFER_APP_ID": "12",
        "METAINFER_APP_KEY": "-----BEGIN RSA PRIVATE KEY-----\\nabc",
        "GITHUB_TOKEN": "actions",
        "GH_TOKEN": "cli",
    }
    assert find_credentials(everything) == Credentials(token="mine")
    del everything["METAINFER_GITHUB_TOKEN"]
    app = find_credentials(everything)
    assert (app.app_id, app.is_app) == ("12", True)
    assert "\n" in app.app_key  # a key kept on one line
    del everything["METAINFER_APP_ID"], everything["METAINFER_APP_KEY"]
    assert find_credentials(everything).token == "actions"


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({}, "METAINFER_GITHUB_TOKEN"),
        ({"METAINFER_APP_ID": "12"}, "METAINFER_APP_KEY"),
        ({"METAINFER_APP_ID": "my-app", "METAINFER_APP_KEY": "k"}, "digits"),
        ({"GITHUB_TOKEN": "two words"}, "GITHUB_TOKEN"),
    ],
)
def test_missing_or_damaged_credentials_are_named_without_being_shown(environment: dict[str, str], named: str) -> None:
    with pytest.raises(InputError, match=named) as caught:
        find_credentials(environment)
    assert "two words" not in str(caught.value)


def test_credentials_do_not_print() -> None:
    assert "s3cret" not in repr(Credentials(token="s3cret", app_key="s3cret"))
